"""Where two JSON values differ, leaf by leaf."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from longturn.dialects.segments.form import compact

NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Leaf:
    """A place where two values differ. before, after: None where there is nothing at that place."""

    path: str
    before: Any
    after: Any

    @property
    def texts(self) -> tuple[str, str] | None:
        """Both texts, where the change is from one text to another."""
        if isinstance(self.before, str) and isinstance(self.after, str):
            return self.before, self.after
        return None


def leaves(before: Any, after: Any, path: str) -> Iterator[Leaf]:
    """All places where `after` differs from `before`, in its order; nothing when they are written alike.

    Objects that differ only in the order of their keys are one leaf, after those inside them.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        inner = [leaf for key in before for leaf in _entry(before, after, key, path)]
        inner += [leaf for key in after if key not in before for leaf in _entry(before, after, key, path)]
        if not inner and list(before) != list(after):
            inner = [Leaf(path, before, after)]
        yield from inner
    elif isinstance(before, list) and isinstance(after, list):
        for i in range(max(len(before), len(after))):
            old = before[i] if i < len(before) else None
            new = after[i] if i < len(after) else None
            yield from leaves(old, new, f"{path}[{i}]")
    elif type(before) is not type(after) or before != after:
        yield Leaf(path, before, after)


def written(value: Any) -> str:
    """A leaf as it is shown."""
    return "" if value is None else value if isinstance(value, str) else compact(value)


def _entry(before: dict[str, Any], after: dict[str, Any], key: str, path: str) -> Iterator[Leaf]:
    step = f".{key}" if NAME.fullmatch(key) else f"[{json.dumps(key)}]"
    yield from leaves(before.get(key), after.get(key), path + step)
