"""What a step of a model costs on a machine: profiles as data, and the model of cost over them. No torch."""

from longturn.engine.cost.cost_model import CostModel, StepSpan
from longturn.engine.cost.hardware_profile import Attention, Calibration, Coefficients, HardwareProfile, Link
from longturn.engine.cost.load import list_profiles, load_hardware_profile, load_model_profile, profile_directory
from longturn.engine.cost.model_profile import MLA, ModelProfile, MoE

__all__ = [
    "MLA",
    "Attention",
    "Calibration",
    "Coefficients",
    "CostModel",
    "HardwareProfile",
    "Link",
    "MoE",
    "ModelProfile",
    "StepSpan",
    "list_profiles",
    "load_hardware_profile",
    "load_model_profile",
    "profile_directory",
]
