"""Edits of a view, one file each: what is sent instead of what was said. The history itself is never changed.

All are imported here, because a history finds them by their class when it reads them.
"""

from longturn.conversation.edits.apply import applied
from longturn.conversation.edits.compact import Compact
from longturn.conversation.edits.contract import ContextPolicy, Decision, Edit, NeedsSummary
from longturn.conversation.edits.dedupe import Dedupe
from longturn.conversation.edits.externalize import Externalize
from longturn.conversation.edits.prune import Prune
from longturn.conversation.edits.replay import Extract, Replay
from longturn.conversation.edits.slide import Slide
from longturn.conversation.edits.withdraw import Withdraw

__all__ = [
    "Compact",
    "ContextPolicy",
    "Decision",
    "Dedupe",
    "Edit",
    "Externalize",
    "Extract",
    "NeedsSummary",
    "Prune",
    "Replay",
    "Slide",
    "Withdraw",
    "applied",
]
