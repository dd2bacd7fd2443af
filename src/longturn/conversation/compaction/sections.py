"""The fixed sections of a summary, read from what a model wrote and written in one form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

Section = Literal["goal", "constraints", "discoveries", "work", "files"]
TITLES: Mapping[Section, str] = {
    "goal": "Goal",
    "constraints": "Instructions and constraints",
    "discoveries": "Discoveries",
    "work": "Accomplished and open work",
    "files": "Relevant files",
}
"""In their order."""
_HEADING = re.compile(r"^\s*(?:#{1,6}\s+|\*\*)(?:\d+[.)]\s*)?(?P<title>[^#*\n]+?)\s*:?\s*(?:\*\*)?:?\s*#*\s*$")
_KEYWORDS: Mapping[Section, tuple[str, ...]] = {
    "goal": ("goal", "objective"),
    "constraints": ("constraint", "instruction"),
    "discoveries": ("discover", "finding"),
    "work": ("accomplished", "work", "progress"),
    "files": ("relevant files", "files"),
}


def read_sections(text: str) -> dict[Section, str]:
    """The sections that a text has, by what their headings say; empty ones are left out.

    Small models number headings, make them bold or change a word: that is no reason to ask again.
    """
    found: dict[Section, list[str]] = {}
    current: Section | None = None
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading and (section := _section(heading["title"])):
            current = section
        elif current is not None:
            found.setdefault(current, []).append(line)
    joined = {section: "\n".join(lines).strip() for section, lines in found.items()}
    return {section: body for section, body in joined.items() if body}


def write_sections(bodies: Mapping[Section, str]) -> str:
    """All sections under their titles; one without a body says so."""
    return "\n\n".join(f"## {title}\n{bodies.get(section) or '(none)'}" for section, title in TITLES.items())


def _section(title: str) -> Section | None:
    lowered = title.casefold()
    if len(lowered) > 60:
        return None
    return next((s for s, words in _KEYWORDS.items() if any(lowered.startswith(word) for word in words)), None) or next(
        (section for section, words in _KEYWORDS.items() if any(word in lowered for word in words)), None
    )
