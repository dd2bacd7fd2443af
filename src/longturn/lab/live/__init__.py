"""Runs a workload against real servers and sets what they report beside what our models of them say."""

from longturn.dialects.engines import ENGINES
from longturn.lab.live.drive import Exchange, Pace
from longturn.lab.live.measure import Plan, measure
from longturn.lab.live.modelled import Model

__all__ = ["ENGINES", "Exchange", "Model", "Pace", "Plan", "measure"]
