"""Where segments of a request end in its tokens: marks are written into its texts, and found again in the prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from longturn.cache import Tokens
from longturn.dialects.segments import Prompt, Segment
from longturn.dialects.talk import Talk
from longturn.serve.caching.parts import tokens_and_ends
from longturn.serve.encoding import Encoding

Json = Mapping[str, Any]

STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
"""One step of a segment's JSON path."""


def measured(
    encoding: Encoding,
    tokenizer: PreTrainedTokenizerBase,
    body: Json,
    prompt: Prompt,
    indexes: Sequence[int],
    talk: Callable[[Json], Talk],
) -> tuple[Tokens, dict[int, int]]:
    """The tokens of the request `body`, int32 [n], and how many of them lie before each segment's end in `indexes`.

    Segments that are no texts, or that the template leaves out, are missing. Templates write tools behind the system's
    text, so that where there are tools the system ends where the first message begins. talk: a body as a conversation.
    """
    places = [place for index in indexes if (place := _place(body, prompt, index))]

    def write(mark: Callable[[int], str]) -> Talk:
        written: Any = body
        for part, (_, path, before) in enumerate(places):
            added = mark(part)
            if added:
                written = _put(written, _steps(path), added, before)
        return talk(written)

    tokens, ends = tokens_and_ends(encoding, tokenizer, write, len(places))
    return tokens, {index: end for (index, *_), end in zip(places, ends, strict=True) if end is not None}


def _place(body: Json, prompt: Prompt, index: int) -> tuple[int, str, bool] | None:
    """The segment, the path of the text that gets its mark, and whether that comes before the text."""
    segments = prompt.segments
    after = segments[index + 1] if index + 1 < len(segments) else None
    if segments[index].level == "system" and segments[0].level == "tools" and after and after.level == "messages":
        path = _text_path(body, after)
        if path is not None:
            return index, path, True
    path = _text_path(body, segments[index])
    return None if path is None else (index, path, False)


def _text_path(body: Json, segment: Segment) -> str | None:
    """The path of the text that a segment ends with."""
    value, path = _get(body, segment.path), segment.path
    if isinstance(value, dict) and segment.kind == "tool_result":
        value, path = value.get("output"), f"{path}.output"
        if isinstance(value, list) and value:
            path = f"{path}[{len(value) - 1}].text"
            value = _get(body, path)
    return path if isinstance(value, str) else None


def _steps(path: str) -> list[str | int]:
    return [name or int(number) for name, number in STEP.findall(path)]


def _get(value: Any, path: str) -> Any:
    for step in _steps(path):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _put(value: Any, steps: Sequence[str | int], added: str, before: bool) -> Any:
    """A copy of `value` with `added` at one end of the text that `steps` lead to; the rest is shared."""
    if not steps:
        return added + value if before else value + added
    first, *rest = steps
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[first] = _put(value[first], rest, added, before)
    return copy
