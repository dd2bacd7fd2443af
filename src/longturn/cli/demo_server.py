"""`longturn serve` as a child process that never outlives its parent's interest in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from longturn.errors import LongturnError
from longturn.store.extent import TEMPORARY

START_SECONDS = 120
WRITE_SECONDS = 30
_LOG_LINES = 15
# Looks at the disk tier that must be alike before it counts as complete.
_STILL = 4
_PROGRAM = "from longturn.cli import app; app(prog_name='longturn')"


class DemoServer:
    """A server on a free port of this machine. folder: for its log and, unless `cache` is False, for its disk tier."""

    def __init__(self, model: str, folder: Path, *, cache: bool) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._disk = folder / "disk"
        self._log = folder / "server.log"
        options = ["--disk-dir", str(self._disk), "--disk-bytes", "2GiB"] if cache else ["--no-cache"]
        # Keys are the affair of real servers: this one lives for a minute, and its client has none.
        environment = {name: value for name, value in os.environ.items() if name != "LONGTURN_API_KEYS"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, "serve", "--model", model, "--port", str(port), *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Return as soon as it answers. Raises LongturnError when it does not come up."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise LongturnError("the server ended before it could answer")
            try:
                if self._get("/health").is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise LongturnError(f"the server did not answer within {START_SECONDS} seconds")

    def wait_for_disk(self) -> int:
        """Return when no more pages go to disk: the tokens there."""
        deadline = time.monotonic() + WRITE_SECONDS
        seen: list[tuple[int, set[str]]] = []
        # The cache counts pages that are still queued, files are what is written: both must stand still.
        while len(seen) < _STILL or any(state != seen[-1] for state in seen[-_STILL:]):
            if time.monotonic() > deadline:
                raise LongturnError(f"the server still writes pages after {WRITE_SECONDS} seconds: is the disk slow?")
            time.sleep(0.1)
            tiers = self._get("/v1/cache").raise_for_status().json()["tiers"]
            tokens = next(tier["used"] for tier in tiers if tier["name"] == "disk")
            files = {path.name for path in self._disk.iterdir()}
            if not any(name.endswith(TEMPORARY) for name in files):
                seen.append((tokens, files))
        return seen[-1][0]

    def kill(self) -> None:
        """SIGKILL: no chance to save anything. Does nothing when it has ended."""
        self._process.kill()
        self._process.wait()

    def log_tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def _get(self, path: str) -> httpx.Response:
        # A proxy from the environment cannot reach this machine's own address.
        return httpx.get(self.url + path, timeout=10, trust_env=False)


@contextmanager
def running(model: str, folder: Path, *, cache: bool = True) -> Iterator[DemoServer]:
    """A server that answers; it is killed when the context ends, however it ends. An error shows the server's log."""
    server = DemoServer(model, folder, cache=cache)
    try:
        server.wait()
        yield server
    except (LongturnError, httpx.HTTPError) as error:
        raise LongturnError(f"{error}. The server's log ends with:\n{server.log_tail()}") from error
    finally:
        server.kill()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
