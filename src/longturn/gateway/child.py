"""`Child`: an accountant as a process, with a pipe that outlives the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass

from longturn.errors import LedgerError
from longturn.gateway import frames
from longturn.gateway.frames import Frame, Ready

PIPE = 1 << 20
"""Bytes that the pipe itself holds, where the system allows it: they are read even after the gateway was killed."""


@dataclass(frozen=True, slots=True)
class Child:
    """A running accountant."""

    process: asyncio.subprocess.Process
    pipe: asyncio.WriteTransport

    @classmethod
    async def start(cls, command: Sequence[str]) -> Child:
        """One that is ready to follow. Raises LedgerError where it ends instead; its log says why."""
        # Not asyncio's own: that is a pair of sockets, which holds less.
        reading, writing = os.pipe()
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=reading, stdout=asyncio.subprocess.PIPE, start_new_session=True
            )
        finally:
            os.close(reading)
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(writing, "wb", 0))
        child = cls(process, pipe)
        if not isinstance(await child.heard(), Ready):
            pipe.abort()
            raise LedgerError(f"the accountant ended with {await process.wait()}: its messages above say why")
        return child

    async def heard(self) -> Frame | None:
        """The next thing that it says; None when it is gone."""
        assert self.process.stdout is not None
        try:
            (length,) = frames.HEAD.unpack(await self.process.stdout.readexactly(frames.HEAD.size))
            return frames.unpacked(await self.process.stdout.readexactly(length))
        except asyncio.IncompleteReadError:
            return None
