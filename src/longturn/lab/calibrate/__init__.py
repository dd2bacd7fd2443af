"""Fits a hardware profile to real steps of the engine on this machine, and says how well it foretells others."""

from longturn.lab.calibrate.calibration import Calibrated, calibrate
from longturn.lab.calibrate.write import write_profile

__all__ = ["Calibrated", "calibrate", "write_profile"]
