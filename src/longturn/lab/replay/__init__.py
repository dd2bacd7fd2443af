"""Replays of a trace: `hits` serially and without a clock, `timed` on a virtual clock, `real` on the torch runner."""

from longturn.lab.replay.hits import replay_hits
from longturn.lab.replay.result import Replay, Served

__all__ = ["Replay", "Served", "replay_hits"]
