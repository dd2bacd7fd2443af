"""Names that must not change in a summary: paths, URLs, hashes, tickets, code. Found by their form, not by a model."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PATTERN = re.compile(
    r"""
      (?P<url>https?://[^\s<>"'`)\]}]+)
    | `(?P<code>[^`\n]{2,80})`
    | (?P<uuid>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b)
    | (?P<path>(?<![\w/.@+-])(?:(?:~|\.{1,2})/(?:[\w.@+-]+/)*|/?(?:[\w.@+-]+/)+)[\w.@+-]*\w)
    | (?P<file>(?<![\w.-])[\w-]{2,}(?:\.[\w-]+)*\.(?:py|pyi|rs|go|c|h|cc|cpp|hpp|cu|js|jsx|ts|tsx|mjs|java|kt|rb|php|cs
        |swift|sh|sql|md|rst|txt|json|jsonl|toml|yaml|yml|xml|html|css|csv|ini|cfg|lock|log|env|db|proto|ipynb|pdf|png|svg)\b)
    | (?P<hash>\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b)
    | (?P<ticket>(?<![\w&/])\#\d+\b | \b[A-Z][A-Z0-9]{1,9}-\d+\b)
    | (?P<constant>\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b)
    | (?P<snake>\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b)
    | (?P<version>\bv?\d+\.\d+\.\d+(?:[.\w-]*\w)?)
    """,
    re.VERBOSE,
)
_LONGEST = 200
# Forms that are no accident: what else looks like a name may be prose.
_CHECKABLE = frozenset({"url", "uuid", "hash", "file", "path"})


def identifiers(text: str) -> list[str]:
    """All in a text, in their order and once each."""
    return list(dict.fromkeys(name for _, name in _found(text)))


def vanished(wanted: Iterable[str], text: str) -> list[str]:
    """Those of `wanted` that a text does not name; of a path its last part is enough."""
    lowered = text.casefold()
    return [name for name in wanted if name.casefold() not in lowered and _last(name).casefold() not in lowered]


def invented(text: str, known: str) -> list[str]:
    """Names in `text` that occur nowhere in `known`, not even their last part."""
    return list(
        dict.fromkeys(
            name for form, name in _found(text) if form in _CHECKABLE and name not in known and _last(name) not in known
        )
    )


def _found(text: str) -> Iterable[tuple[str, str]]:
    for match in _PATTERN.finditer(text):
        form = str(match.lastgroup)
        name = match[form].rstrip(".,;:!?")
        if len(name) > _LONGEST:
            continue  # data, not a name
        if form == "path" and not _is_path(name):
            continue
        yield form, name


def _is_path(name: str) -> bool:
    """Not a date, a fraction, or two words of prose with a slash between them."""
    if not re.search(r"[^\W\d_]", name):
        return False
    return name.count("/") > 1 or re.search(r"^[/~.]|[._\d-]", name) is not None


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] if "/" in name and "://" not in name else name
