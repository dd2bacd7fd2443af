"""Traces of real traffic in one internal form, whatever file they come from."""

from longturn.lab.trace.form import Blocks, Trace, TraceRequest

__all__ = ["Blocks", "Trace", "TraceRequest"]
