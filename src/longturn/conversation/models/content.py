"""A neutral message's content as pieces that every provider takes: words and pictures."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Load = Callable[[str], bytes]
"""The bytes of an artifact by its digest. Raises ArtifactError."""


@dataclass(frozen=True, slots=True)
class Picture:
    """media_type: such as image/png; data: base64."""

    media_type: str
    data: str

    @property
    def url(self) -> str:
        """As a URL that holds it all."""
        return f"data:{self.media_type};base64,{self.data}"


def pieces(message: Mapping[str, Any], load: Load | None = None) -> Iterator[str | Picture]:
    """What a message says, without empty words. load: gives the bytes of its files; raises what that raises.

    A picture is sent as such, a text file as words; of any other file, and without `load`, only its name is sent.
    """
    content = message.get("content") or ()
    if isinstance(content, str):
        yield content
        return
    for part in content:
        if part["type"] == "file":
            yield _file(part["file"], load)
        elif part["text"]:
            yield part["text"]


def words(message: Mapping[str, Any]) -> str:
    """The words of a message that has no pictures."""
    return "\n\n".join(piece for piece in pieces(message) if isinstance(piece, str))


def _file(file: Mapping[str, Any], load: Load | None) -> str | Picture:
    kind = file["media_type"]
    if load is not None and kind.startswith("image/"):
        return Picture(kind, base64.b64encode(load(file["digest"])).decode())
    if load is not None and (kind.startswith("text/") or kind == "application/json"):
        return f"[file {file['name']}]\n{load(file['digest']).decode(errors='replace')}"
    return f"[file {file['name']}, {kind}, {file['size']:,} bytes: its content is not shown]"
