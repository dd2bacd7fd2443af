"""One engine's processes: started, paused while others are measured, killed, and their memory read."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from bench.peers.launch import LAUNCHES
from bench.peers.places import Places
from bench.peers.pools import Pools
from longturn.errors import LongturnError

START_S = 900.0
"""vLLM compiles the model when it starts for the first time."""


class Server:
    """An engine with these pools, in a process group of its own: all signals go to that group by its id."""

    def __init__(self, engine: str, places: Places, pools: Pools) -> None:
        self.engine = engine
        self.started_in_s = 0.0
        self._spent_s = 0.0  # by those that were killed
        self._places, self._pools = places, pools
        self._scratch = tempfile.TemporaryDirectory(prefix=f"peers-{engine}-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Return when it serves. Raises LongturnError, with the place of its log, when it does not within START_S."""
        launch = LAUNCHES[self.engine](self._places, self._pools, self._port, Path(self._scratch.name))
        log = self._places.logs / f"{self.engine}-{self._pools.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with log.open("ab") as file:
            try:
                self._process = subprocess.Popen(
                    launch.command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=os.environ | launch.environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise LongturnError(f"{error}: run with --setup first") from None
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            while not await _healthy(client, self.url):
                if self._process.poll() is not None:
                    raise LongturnError(f"it ended with status {self._process.returncode}: see the end of {log}")
                if time.monotonic() - began > START_S:
                    raise LongturnError(f"it does not serve after {START_S:.0f} s: see the end of {log}")
                await asyncio.sleep(0.2)
        self.started_in_s = time.monotonic() - began

    def pause(self) -> None:
        """Stop all its threads until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it, as a power cut would. It may be started again, with the same files on disk."""
        self._spent_s = self.cpu_seconds()
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)
        self._process = None

    def close(self) -> None:
        """Kill it and remove its files."""
        self.stop()
        self._scratch.cleanup()

    def resident_bytes(self) -> int:
        """Memory of all its processes now, with what they share counted once (0 if it is not running)."""
        return sum(_proportional_bytes(process) for process in self._processes())

    def cpu_seconds(self) -> float:
        """Processor time that its processes have taken since it was first started."""
        return self._spent_s + sum(_cpu_seconds(process) for process in self._processes())

    def _processes(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            main = psutil.Process(self._process.pid)
            return [main, *main.children(recursive=True)]
        except psutil.Error:
            return []

    def _signal(self, number: int) -> None:
        if self._process is None:
            return
        # Workers may have made groups of their own: they are told one by one.
        for process in self._processes():
            try:
                process.send_signal(number)
            except psutil.Error:
                continue


async def _healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).is_success
    except httpx.HTTPError:
        return False


def _proportional_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
