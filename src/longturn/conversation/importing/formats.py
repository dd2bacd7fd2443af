"""Which files can be imported, and how a file's format is told from its content."""

from __future__ import annotations

from pathlib import Path

import msgspec

from longturn.conversation.history import Whole
from longturn.conversation.importing import claude_code, jsonl, opencode
from longturn.conversation.importing.building import Keep
from longturn.conversation.importing.files import content, numbered
from longturn.errors import ImportFailed

FORMATS = ("longturn", "opencode", "claude-code")
CLAUDE_KEYS = ({"type", "sessionId"}, {"type", "uuid"}, {"type", "leafUuid"}, {"type", "messageId", "snapshot"})


def read_sessions(path: Path, keep: Keep, *, format: str | None = None, skip_bad: bool = False) -> list[Whole]:
    """The sessions in a file, plain or gzip.

    keep: puts attached files into the artifact store; format: of FORMATS, told from the content if not given; skip_bad:
    leave malformed lines out. Raises ImportFailed for a file that cannot be read, or holds no session.
    """
    if format is not None and format not in FORMATS:
        raise ImportFailed(f"there is no format {format!r}: give one of {', '.join(FORMATS)}")
    data = content(path)
    match format or _recognised(path, data):
        case "longturn":
            found = jsonl.read(path, data, skip_bad)
        case "opencode":
            found = [opencode.read(path, data, keep)]
        case _:
            found = claude_code.read(path, data, keep, skip_bad)
    if not found:
        raise ImportFailed(f"{path} holds no session: give an export of longturn or opencode, or a Claude Code log")
    return found


def _recognised(path: Path, data: bytes) -> str:
    for _, line in numbered(data):
        if line.startswith(b'{"longturn":'):
            return "longturn"
        try:
            value = msgspec.json.decode(line)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict) and any(keys <= value.keys() for keys in CLAUDE_KEYS):
            return "claude-code"
        break
    if b'"messages"' in data and data.lstrip().startswith(b"{"):
        return "opencode"
    raise ImportFailed(
        f"{path} is in no format that is known: give --format, one of {', '.join(FORMATS)}, if it is one of these"
    )
