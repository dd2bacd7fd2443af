"""What a prefix cache of a given size could hit at best, what LRU hits, and LRU's hits at every size.

All take a trace's `Reuse`: serial order, a hit is the leading run of a prompt's cached blocks; answers are cached only
if `reuse` or `sample` is told so.
"""

from longturn.lab.bounds.curve import Curve, lru_curve
from longturn.lab.bounds.gap import gap_closed
from longturn.lab.bounds.infinite import infinite
from longturn.lab.bounds.lru import lru
from longturn.lab.bounds.optimum import optimum
from longturn.lab.bounds.sample import sample

__all__ = ["Curve", "gap_closed", "infinite", "lru", "lru_curve", "optimum", "sample"]
