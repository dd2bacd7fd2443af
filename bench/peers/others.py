"""How much of the machine is taken by what is not measured: figures of a busy machine are worth little."""

from __future__ import annotations

import time

import psutil

from bench.peers.server import Server


class Others:
    """Watches from its making on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = self._now()

    def share(self) -> float:
        """Of all processors' time, 0 to 1: busy, and neither by this process nor by the server."""
        wall, busy, own = (after - before for before, after in zip(self._before, self._now(), strict=True))
        cores = psutil.cpu_count() or 1
        return min(max((busy - own) / (wall * cores), 0.0), 1.0) if wall else 0.0

    def _now(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        me = psutil.Process().cpu_times()
        # Guests' time is inside user; idle and waiting for disks are not busy.
        busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        return time.monotonic(), busy, me.user + me.system + self._server.cpu_seconds()
