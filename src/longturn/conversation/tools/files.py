"""`read`, `list` and `search` of the files below a root."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatch
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from longturn.conversation.tools.contract import Outcome, Tool
from longturn.conversation.tools.root import Root
from longturn.errors import ToolError

MOST_BYTES = 8 << 20
MOST_ENTRIES = 1000
LONGEST_LINE = 2000

_A = TypeVar("_A", bound=msgspec.Struct)


class _Read(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The file, relative to the root.")]
    line: Annotated[int, Meta(ge=1, description="First line to show, counting from 1.")] = 1
    lines: Annotated[int, Meta(ge=1, description="How many lines to show.")] = 2000


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The folder, relative to the root.")] = "."


class _Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1, description="What the line must hold, word for word; case is ignored.")]
    path: Annotated[str, Meta(description="The folder or file to search, relative to the root.")] = "."
    files: Annotated[str, Meta(description="Names of the files to search, such as *.py.")] = "*"
    limit: Annotated[int, Meta(ge=1, le=1000, description="Most lines to show.")] = 100


def file_tools(root: Root) -> list[Tool]:
    """The three tools over `root`. Their work is done in threads."""
    return [
        Tool("read", "Read a text file.", _schema(_Read), _threaded(_Read, lambda given: _read(root, given))),
        Tool("list", "List a folder.", _schema(_List), _threaded(_List, lambda given: _list(root, given))),
        Tool(
            "search",
            "Find the lines of text files that hold a text.",
            _schema(_Search),
            _threaded(_Search, lambda given: _search(root, given)),
        ),
    ]


def _read(root: Root, given: _Read) -> Outcome:
    path = root.find(given.path)
    text = _text(root.read(path, MOST_BYTES + 1))
    if text is None:
        raise ToolError(f"{given.path!r} is binary, or larger than {MOST_BYTES >> 20} MiB: search it, or read another")
    lines = text.removesuffix("\n").split("\n") if text else []
    shown = lines[given.line - 1 : given.line - 1 + given.lines]
    if lines and not shown:
        raise ToolError(f"{given.path!r} has {len(lines):,} lines: begin at one of them")
    end = given.line + len(shown) - 1
    note = "" if end >= len(lines) and given.line == 1 else f"\n[lines {given.line} to {end} of {len(lines):,}]"
    return Outcome("\n".join(shown) + note, resource=root.name(path))


def _list(root: Root, given: _List) -> Outcome:
    folder = root.find(given.path)
    if not folder.is_dir():
        raise ToolError(f"{given.path!r} is no folder: `read` shows files")
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ToolError(f"{given.path!r} cannot be listed: {error.strerror}") from None
    names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries[:MOST_ENTRIES]]
    if len(entries) > MOST_ENTRIES:
        names.append(f"[and {len(entries) - MOST_ENTRIES:,} more]")
    return Outcome("\n".join(names) or "[empty]", resource=root.name(folder))


def _search(root: Root, given: _Search) -> Outcome:
    place = root.find(given.path)
    wanted = given.text.casefold()
    found: list[str] = []
    for path in root.files(place) if place.is_dir() else [place]:
        if not fnmatch(path.name, given.files):
            continue
        try:
            text = _text(root.read(path, MOST_BYTES + 1))
        except ToolError:
            continue  # gone meanwhile, or not ours to read: the others still count
        if text is None or wanted not in text.casefold():
            continue
        for number, line in enumerate(text.split("\n"), start=1):
            if wanted in line.casefold():
                if len(found) == given.limit:
                    return Outcome("\n".join([*found, "[more lines match: ask for more, or in other words]"]))
                found.append(f"{root.name(path)}:{number}: {line[:LONGEST_LINE]}")
    return Outcome("\n".join(found) or "[no line matches]")


def _text(data: bytes) -> str | None:
    """As text, None for binary data and for what is too large."""
    if len(data) > MOST_BYTES or b"\0" in data[:8192]:
        return None
    return data.decode("utf-8", "replace")


def _threaded(kind: type[_A], work: Callable[[_A], Outcome]) -> Callable[[Mapping[str, Any]], Awaitable[Outcome]]:
    async def run(arguments: Mapping[str, Any]) -> Outcome:
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            # Models write numbers in quotes.
            checked = msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            raise ToolError(f"these arguments cannot be used: {error}") from None
        return await asyncio.to_thread(work, checked)

    return run


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema alone, without the names of our types."""
    (schema,) = msgspec.json.schema_components([kind])[1].values()
    return {name: schema[name] for name in ("type", "properties", "required", "additionalProperties") if name in schema}
