"""Which formats there are, how a file's format is told from its content, and `open_trace`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from longturn.errors import ConfigError, TraceError
from longturn.lab.trace.azure import HEADER, Azure
from longturn.lab.trace.chat_log import ChatLog
from longturn.lab.trace.claude_code import ClaudeCode
from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.mooncake import Mooncake
from longturn.lab.trace.opencode import OpenCode
from longturn.lab.trace.requests import Requests
from longturn.lab.trace.structure import Structure
from longturn.lab.trace.taubench import TauBench
from longturn.lab.trace.text import Tokenize
from longturn.lab.trace.weka import DAY, Weka

LINES_LOOKED_AT = 20


@dataclass(frozen=True)
class ReadOptions:
    """What a reader may be told; each takes what concerns it.

    skip_bad: leave malformed lines out instead of raising; span: seconds over which sessions without a common clock are
    spread, from random starts of `seed`; shared_heads: whether sessions share their system prompt and tools where the
    file does not tell; tokenize: a tokenizer for formats that hold text.
    """

    skip_bad: bool = False
    span: float = DAY
    seed: int = 0
    shared_heads: bool = False
    tokenize: Tokenize | None = None


@dataclass(frozen=True)
class Format:
    """A format: what it is, keys that a line of it has (all of one of the sets), and its reader."""

    about: str
    keys: tuple[frozenset[str], ...]
    read: Callable[[TraceFile, ReadOptions], FileTrace]


def _keys(*alternatives: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(keys.split()) for keys in alternatives)


FORMATS = {
    "requests": Format(
        "token ids, one request a line: what Longturn writes",
        _keys("session tokens output"),
        lambda file, told: Requests(file, skip_bad=told.skip_bad),
    ),
    "mooncake": Format(
        "Mooncake: hash ids of blocks of 512 tokens",
        _keys("hash_ids input_length"),
        lambda file, told: Mooncake(file, skip_bad=told.skip_bad),
    ),
    "weka": Format(
        "WEKA: Claude Code sessions, runs of blocks of 64 tokens",
        _keys("hash_id_scope"),
        lambda file, told: Weka(
            file, skip_bad=told.skip_bad, span=told.span, seed=told.seed, shared_heads=told.shared_heads
        ),
    ),
    "structure": Format(
        "coding-agent sessions, lengths and opaque ids instead of text",
        _keys("session entries"),
        lambda file, told: Structure(file, skip_bad=told.skip_bad, shared_heads=told.shared_heads),
    ),
    "opencode": Format(
        "an opencode export (one JSON object)",
        _keys("info messages", "info parts"),
        lambda file, told: OpenCode(
            file, skip_bad=told.skip_bad, shared_heads=told.shared_heads, tokenize=told.tokenize
        ),
    ),
    "chat": Format(
        "OpenAI-style chat log, one request or conversation a line",
        _keys("messages"),
        lambda file, told: ChatLog(file, skip_bad=told.skip_bad, tokenize=told.tokenize),
    ),
    "claude-code": Format(
        "a Claude Code session log",
        _keys("type sessionId", "type uuid", "type leafUuid", "type messageId snapshot"),
        lambda file, told: ClaudeCode(
            file, skip_bad=told.skip_bad, shared_heads=told.shared_heads, tokenize=told.tokenize
        ),
    ),
    "tau-bench": Format(
        "tau-bench trajectories (one JSON array)",
        _keys("task_id traj"),
        lambda file, told: TauBench(file, skip_bad=told.skip_bad, tokenize=told.tokenize),
    ),
    "azure": Format(
        "Azure LLM inference CSV: arrivals and lengths without content",
        (),
        lambda file, told: Azure(file, skip_bad=told.skip_bad),
    ),
}


def open_trace(
    path: str | Path,
    *,
    format: str | None = None,
    skip_bad: bool = False,
    span: float = DAY,
    seed: int = 0,
    shared_heads: bool = False,
    tokenize: Tokenize | None = None,
) -> FileTrace:
    """The trace in a file, plain or gzip, of any format in FORMATS, which is told from the content if not given.

    The other arguments are those of ReadOptions. Raises ConfigError for an unknown format, TraceError for a file that
    cannot be read or recognised; malformed lines raise TraceError when the trace is gone through.
    """
    if format is not None and format not in FORMATS:
        raise ConfigError(f"There is no trace format {format!r}. Give one of {', '.join(FORMATS)}.")
    file = TraceFile(Path(path))
    return FORMATS[format or recognised(file)].read(file, ReadOptions(skip_bad, span, seed, shared_heads, tokenize))


def recognised(file: TraceFile) -> str:
    """The format of a file by its content. Raises TraceError."""
    lines = [line for _, line in islice(file.lines(), LINES_LOOKED_AT)]
    if not lines:
        raise TraceError(f"{file.path} is empty. Give a trace file.")
    if lines[0].strip() == HEADER:
        return "azure"
    values = [_decoded(line) for line in lines]
    if name := next(filter(None, map(_by_keys, values)), None):
        return name
    # One JSON value over many lines: the whole file has to be looked at.
    if values[0] is None and lines[0].lstrip()[:1] in (b"{", b"["):
        name = _by_keys(file.decoded(msgspec.json.Decoder()))
        if name:
            return name
    raise TraceError(
        f"{file.path} is in no format that is known. Give --format, one of {', '.join(FORMATS)}, if it is one of these."
    )


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return None


def _by_keys(value: Any) -> str | None:
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, dict):
        return None
    return next(
        (name for name, known in FORMATS.items() if any(keys <= value.keys() for keys in known.keys)),
        None,
    )
