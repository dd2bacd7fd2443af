"""The tools by which a model gets back what is not sent any more: `artifact_read`, `artifact_search`, `recall`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta
from msgspec import UnsetType as Unset

from longturn.conversation.artifacts.handle import DIGITS, HANDLE, digest_of, handle_of
from longturn.conversation.artifacts.lines import matches, portion
from longturn.conversation.artifacts.recall import find_passages, passages, read_message
from longturn.conversation.artifacts.store import Artifacts
from longturn.conversation.entries import Entry, Said
from longturn.conversation.item import Place
from longturn.conversation.parts import File, ToolResult
from longturn.errors import ArtifactError

_A = TypeVar("_A", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the tools reach. entries: the history as it is now; shown: places of what is sent whole now, so that there
    is nothing to recall."""

    artifacts: Artifacts
    entries: Callable[[], Sequence[Entry]]
    shown: Callable[[], Collection[Place]] = tuple


@dataclass(frozen=True, slots=True)
class MemoryTool:
    """One tool. parameters: JSON schema of the arguments; function: its work, on arguments as a model gave them.

    The function raises ArtifactError for arguments that fit no schema, and for what is not there.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[[Memory, Mapping[str, Any]], str]


class _Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    line: Annotated[int, Meta(ge=1, description="First line to show, counting from 1.")] = 1
    lines: Annotated[int, Meta(ge=1, description="How many lines to show.")] = 400
    character: Annotated[int, Meta(ge=0, description="Characters to skip in the first line, if it is very long.")] = 0


class _ReadArguments(_Arguments, frozen=True, forbid_unknown_fields=True, kw_only=True):
    handle: Annotated[str, Meta(description="Handle of the artifact, such as artifact:1f3c9a2b44d0.")]


class _SearchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, description="Text to find, or words that must all be in a line.")]
    handle: Annotated[str, Meta(description="Search this artifact only; default: all of the conversation.")] | Unset = (
        UNSET
    )
    limit: Annotated[int, Meta(ge=1, le=200, description="Most lines to show.")] = 40


class _RecallArguments(_Arguments, frozen=True, forbid_unknown_fields=True, kw_only=True):
    query: Annotated[str, Meta(description="Words that the wanted passages hold.")] | Unset = UNSET
    message: Annotated[int, Meta(ge=0, description="Read this message whole, by its number.")] | Unset = UNSET
    limit: Annotated[int, Meta(ge=1, le=50, description="Most passages to show for a query.")] = 8


def artifact_read(memory: Memory, arguments: Mapping[str, Any]) -> str:
    """Lines of an artifact, numbered."""
    wanted = _checked(arguments, _ReadArguments)
    try:
        text = memory.artifacts.text(memory.artifacts.find(wanted.handle))
    except ArtifactError:
        # The store may have been lost or moved; results of tools are in the history too.
        text = _result(memory.entries(), wanted.handle.strip().removeprefix(HANDLE))
        if text is None:
            raise
    if text is None:
        return f"[{wanted.handle} is binary data: there is no text]"
    return portion(text, wanted.line, wanted.lines, wanted.character)


def artifact_search(memory: Memory, arguments: Mapping[str, Any]) -> str:
    """The lines that match, under the handle of each artifact. Damaged artifacts are named and passed over."""
    wanted = _checked(arguments, _SearchArguments)
    if wanted.handle is not UNSET:
        digests = [memory.artifacts.find(wanted.handle)]
    else:
        digests = [digest for digest in _digests(memory.entries()) if digest in memory.artifacts]
    shown: list[str] = []
    room = wanted.limit
    for digest in digests:
        try:
            text = memory.artifacts.text(digest)
        except ArtifactError as error:
            shown.append(f"[{error}]")
            continue
        if hits := list(islice(matches(text or "", wanted.query), room + 1)):
            shown.append(handle_of(digest))
            shown += (f"{number}: {excerpt}" for number, excerpt in hits[:room])
            if len(hits) > room:
                return "\n".join([*shown, f"[more than {wanted.limit} lines match: ask for more, or in other words]"])
            room -= len(hits)
    if not shown:
        return f"[no line of {len(digests):,} artifacts matches {wanted.query!r}]"
    return "\n".join(shown)


def recall(memory: Memory, arguments: Mapping[str, Any]) -> str:
    """Passages of the conversation that is not sent any more, or one message whole."""
    wanted = _checked(arguments, _RecallArguments)
    entries = memory.entries()
    if wanted.message is not UNSET:
        return read_message(entries, wanted.message, wanted.line, wanted.lines, wanted.character)
    if wanted.query is UNSET:
        raise ArtifactError("recall wants a query, or the number of a message")
    return find_passages(passages(entries, memory.shown()), wanted.query, wanted.limit)


def _checked(arguments: Mapping[str, Any], kind: type[_A]) -> _A:
    """Arguments as models write them: null for what they leave out, and numbers in quotes."""
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"these arguments cannot be used: {error}") from None


def _digests(entries: Sequence[Entry]) -> list[str]:
    """Of everything in the history that may be an artifact, the newest first."""
    found = []
    for entry in reversed(entries):
        for part in reversed(entry.message.parts if isinstance(entry, Said) else ()):
            if isinstance(part, File):
                found.append(part.digest)
            elif isinstance(part, ToolResult):
                found.append(digest_of(part.text))
    return list(dict.fromkeys(found))


def _result(entries: Sequence[Entry], digits: str) -> str | None:
    """The tool result whose digest begins so."""
    for entry in entries if len(digits) >= DIGITS else ():
        for part in entry.message.parts if isinstance(entry, Said) else ():
            if isinstance(part, ToolResult) and digest_of(part.text).startswith(digits):
                return part.text
    return None


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema alone, without the names of our types, and the required arguments first."""
    (schema,) = msgspec.json.schema_components([kind])[1].values()
    properties = schema["properties"]
    required = schema.get("required", [])
    order = [*required, *(name for name in properties if name not in required)]
    return {
        "type": "object",
        "properties": {name: properties[name] for name in order},
        "required": required,
        "additionalProperties": False,
    }


MEMORY_TOOLS = (
    MemoryTool(
        "artifact_read",
        "Read lines of an artifact: a large tool output, file or log that the conversation shows only in part.",
        _schema(_ReadArguments),
        artifact_read,
    ),
    MemoryTool(
        "artifact_search",
        "Find lines in an artifact, or in all artifacts of this conversation. Case does not matter.",
        _schema(_SearchArguments),
        artifact_search,
    ),
    MemoryTool(
        "recall",
        "Look up earlier parts of this conversation that are not shown any more: by words, or a message by its number.",
        _schema(_RecallArguments),
        recall,
    ),
)
"""In the order in which they are offered."""
