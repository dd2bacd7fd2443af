"""Fresh memory is made ready before it is written: whoever wrote it would wait for the system to find and clear it.

That takes longest in a virtual machine whose host has yet to find it as well: 3 ms for a huge page, and a step of a
prompt came upon 60 of them at once; 0.3 ms for a page of the host tier (measured).
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Sequence

# So much is ready beyond what is in use, or up to twice as much.
BYTES = 128 << 20
_PIECE = 2 << 20
# Of a core's time this takes one part in so many, so that others hardly feel it.
_REST = 5
_POPULATE_WRITE = 23  # of madvise(2); since Linux 5.14


class Ahead:
    """Makes arrays of `n` items of so many bytes each ready together, in a thread of its own.

    places: where they begin. Memory that is given back meanwhile takes no harm: whatever lies there keeps its content.
    """

    def __init__(self, places: Sequence[int], n: int, item_bytes: int) -> None:
        self._places, self._n, self._item_bytes = places, n, item_bytes
        self._step = max(BYTES // (item_bytes * len(places)), 1)
        self._wanted = self._ready = 0
        self._working = False
        self._lock = threading.Lock()

    def reached(self, item: int) -> None:
        """Items up to this one are in use; some more will be ready soon."""
        if item + self._step <= self._wanted or self._wanted == self._n:
            return
        with self._lock:
            self._wanted = min(item + 2 * self._step, self._n)
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name="longturn-ahead", daemon=True).start()

    def _work(self) -> None:
        # Nothing here may call into torch: a program that ends meanwhile would not survive it.
        try:
            madvise = ctypes.CDLL(None).madvise
        except (AttributeError, OSError):
            return  # not this system: memory is found when it is written
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        while True:
            with self._lock:
                first, stop = self._ready, self._wanted
                if first == stop:
                    self._working = False
                    return
            for place in self._places:
                at, end = place + first * self._item_bytes, place + stop * self._item_bytes
                at = at // mmap.PAGESIZE * mmap.PAGESIZE
                for piece in range(at, end, _PIECE):
                    began = time.monotonic()
                    if madvise(piece, min(_PIECE, end - piece), _POPULATE_WRITE):
                        return  # not this kernel, or no memory
                    time.sleep((time.monotonic() - began) * _REST)
            self._ready = stop
