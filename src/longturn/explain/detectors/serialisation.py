"""The same content, written otherwise: order of keys, of tools, of the body, and white space."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from longturn.dialects.segments.form import opened
from longturn.explain.finding import Finding
from longturn.explain.leaves import Leaf
from longturn.explain.pair import Pair


def tools_reordered(pair: Pair) -> Finding | None:
    """The same tools in another order, or those that both have."""
    if pair.before is None or pair.before.level != "tools":
        return None
    old = [segment.canonical for segment in pair.old if segment.level == "tools"]
    new = [segment.canonical for segment in pair.new if segment.level == "tools"]
    if old == new:
        return None
    if Counter(old) == Counter(new):
        return Finding(f"the same {len(old)} tools come in another order", 0.98)
    shared = set(old) & set(new)
    if [tool for tool in old if tool in shared] != [tool for tool in new if tool in shared]:
        return Finding(f"{len(shared)} tools that both have come in another order; others came or went", 0.8)
    return None


def key_order(pair: Pair) -> Finding | None:
    """Equal once keys are sorted, also inside strings that hold JSON."""
    a, b = pair.before, pair.after
    if a is None or b is None or not pair.changes:
        return None
    if a.canonical == b.canonical:
        if all(_only_spaced(leaf) for leaf in pair.changes):
            return None
        return Finding(f"{a.name} holds the same JSON with its keys in another order", 0.97)
    if a.level == "tools" and _unordered(a.value) == _unordered(b.value):
        return Finding(f"{a.name} holds the same JSON with a list in another order", 0.8)
    return None


def body_order(pair: Pair) -> Finding | None:
    """The parts of the body change places: harmless where the provider renders them, a miss where it reads bytes."""
    if not pair.append_only or pair.hit:
        return None
    both = set(pair.a.prompt.order) & set(pair.b.prompt.order)
    old = [key for key in pair.a.prompt.order if key in both]
    new = [key for key in pair.b.prompt.order if key in both]
    vertex = str(pair.b.body.get("anthropic_version", "")).startswith("vertex")
    late = vertex and "messages" in new[:-1]
    if old == new and not late:
        return None
    how = f"{', '.join(old)} become {', '.join(new)}" if old != new else f"{', '.join(new)}: messages are not the last"
    return Finding(f"the body's own keys are out of order: {how}", 0.8 if vertex or pair.hit is False else 0.5, kept=0)


def whitespace(pair: Pair) -> Finding | None:
    """Equal but for white space; or something that is nothing else has gone or come."""
    a, b = pair.before, pair.after
    if pair.changes and all(_only_spaced(leaf) for leaf in pair.changes):
        return Finding("both texts are equal but for white space", 0.95)
    for segment, others in ((a, pair.new), (b, pair.old)):
        following = pair.old if segment is a else pair.new
        if segment is None or segment.kind not in ("text", "thinking") or segment.text.strip():
            continue
        after, here = following[pair.index + 1 : pair.index + 2], others[pair.index : pair.index + 1]
        if not after or (here and after[0].same(here[0])):
            return Finding("a block of nothing but white space comes or goes", 0.9)
    return None


def _only_spaced(leaf: Leaf) -> bool:
    texts = leaf.texts
    return texts is not None and "".join(texts[0].split()) == "".join(texts[1].split())


def _unordered(value: Any) -> Any:
    """`value` with keys and lists sorted."""
    value = opened(value)
    if isinstance(value, dict):
        return {key: _unordered(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return sorted((_unordered(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value
