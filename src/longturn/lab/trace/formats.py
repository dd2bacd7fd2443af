"""Which formats there are, how a file's format is told from its content, and `open_trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from longturn.errors import ConfigError, TraceError
from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.mooncake import Mooncake
from longturn.lab.trace.requests import Requests
from longturn.lab.trace.weka import DAY, Weka

LINES_LOOKED_AT = 20


@dataclass(frozen=True)
class ReadOptions:
    """What a reader may be told; each takes what concerns it.

    skip_bad: leave malformed lines out instead of raising; span: seconds over which sessions without a common clock are
    spread, from random starts of `seed`; shared_heads: whether sessions with the same system prompt and tools share
    them, where the file tells no content.
    """

    skip_bad: bool = False
    span: float = DAY
    seed: int = 0
    shared_heads: bool = False


@dataclass(frozen=True)
class Format:
    """A format: what it is, what its lines have (keys of the JSON object in them), and its reader."""

    about: str
    keys: frozenset[str]
    read: Callable[[TraceFile, ReadOptions], FileTrace]


def _weka(file: TraceFile, options: ReadOptions) -> FileTrace:
    return Weka(
        file,
        skip_bad=options.skip_bad,
        span=options.span,
        seed=options.seed,
        shared_heads=options.shared_heads,
    )


FORMATS = {
    "requests": Format(
        "token ids, one request a line",
        frozenset({"tokens", "output"}),
        lambda file, options: Requests(file, skip_bad=options.skip_bad),
    ),
    "mooncake": Format(
        "Mooncake: hash ids of 512-token blocks",
        frozenset({"hash_ids", "input_length"}),
        lambda file, options: Mooncake(file, skip_bad=options.skip_bad),
    ),
    "weka": Format("WEKA: Claude Code sessions in runs of 64-token blocks", frozenset({"hash_id_scope"}), _weka),
}


def open_trace(
    path: str | Path,
    *,
    format: str | None = None,
    skip_bad: bool = False,
    span: float = DAY,
    seed: int = 0,
    shared_heads: bool = False,
) -> FileTrace:
    """The trace in a file, plain or gzip, of any format in FORMATS, which is told from the content if not given.

    The other arguments are those of ReadOptions. Raises ConfigError for an unknown format, TraceError for a file that
    cannot be read or recognised; malformed lines raise TraceError when the trace is gone through.
    """
    if format is not None and format not in FORMATS:
        raise ConfigError(f"There is no trace format {format!r}. Give one of {', '.join(FORMATS)}.")
    file = TraceFile(Path(path))
    options = ReadOptions(skip_bad, span, seed, shared_heads)
    return FORMATS[format or recognised(file)].read(file, options)


def recognised(file: TraceFile) -> str:
    """The format of a file by its first lines. Raises TraceError."""
    looked_at = 0
    for _, line in islice(file.lines(), LINES_LOOKED_AT):
        looked_at += 1
        try:
            record: Any = msgspec.json.decode(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and (name := _by_keys(record)):
            return name
    if not looked_at:
        raise TraceError(f"{file.path} is empty. Give a trace file.")
    raise TraceError(
        f"{file.path} is in no format that is known by its first {looked_at} lines. Give --format, one of "
        f"{', '.join(FORMATS)}."
    )


def _by_keys(keys: Iterable[str]) -> str | None:
    return next((name for name, known in FORMATS.items() if known.keys <= set(keys)), None)
