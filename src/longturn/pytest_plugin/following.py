"""Which earlier request a request goes on from. Told by content, since that is all that every SDK sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from longturn.explain import Verdict, explain_exchanges
from longturn.explain.verdict import common
from longturn.pytest_plugin.recorded import Recorded

Part = tuple[str, str, str, str]
"""Level, role, kind and text of a segment: what it is rendered from."""
ALIKE = 0.5
"""Share of the longer of two system prompts that has to agree for both to be one agent's."""


def followed(later: Recorded, earlier: Sequence[Recorded], expected: bool) -> tuple[Recorded, Verdict] | None:
    """The one of `earlier` that `later` goes on from, and what became of its prefix; None begins a conversation.

    It goes on from what the same agent sent and it repeats in its messages, or else from whatever it repeats answers
    of. A request that repeats nothing goes on from the agent's latest if it says that it is a compaction, or if the
    test says so: `expected`.
    """
    known = [one for one in earlier if one.provider == later.provider]
    own = [one for one in known if _same_agent(one, later)]
    found = _closest(later, own, _any) or _closest(later, known, _answer)
    if found is not None:
        return found, explain_exchanges(found.exchange, later.exchange)
    if own:
        verdict = explain_exchanges(own[-1].exchange, later.exchange)
        if verdict.intentional or expected:
            return own[-1], verdict
    return None


def _closest(later: Recorded, earlier: Sequence[Recorded], counts: Callable[[Part], bool]) -> Recorded | None:
    """The one whose messages begin most like those of `later`; of several, the one it repeats most of.

    Not most in common alone: two conversations may well have read the same long file.
    """
    best, most = None, (0, 0, 0)
    for one in earlier:
        shared = [part for part in one.parts if part in later.parts]
        if not any(map(counts, shared)):
            continue
        begun = takewhile(lambda pair: pair[0] == pair[1], zip(one.parts, later.parts, strict=False))
        likeness = _size(part for part, _ in begun), _size(shared), -_size(one.parts)
        if best is None or likeness >= most:
            best, most = one, likeness
    return best


def _size(parts: Iterable[Part]) -> int:
    """Parts without a text count as well."""
    return sum(1 + len(text) for *_, text in parts)


def _any(part: Part) -> bool:
    return True


def _answer(part: Part) -> bool:
    _, role, kind, _ = part
    return role in ("assistant", "model") or kind == "tool_result"


def _same_agent(a: Recorded, b: Recorded) -> bool:
    """Whether the system prompts differ little enough; where neither has one, whether they share a tool."""
    if not a.system and not b.system:
        return bool(a.tools & b.tools) or not (a.tools or b.tools)
    head = common(a.system, b.system)
    tail = min(common(a.system[::-1], b.system[::-1]), min(len(a.system), len(b.system)) - head)
    return head + tail >= ALIKE * max(len(a.system), len(b.system))
