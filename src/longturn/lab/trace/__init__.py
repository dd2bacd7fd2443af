"""Traces of real traffic in one internal form, whatever file they come from."""

from longturn.lab.trace.form import Blocks, Trace, TraceRequest
from longturn.lab.trace.formats import FORMATS, open_trace
from longturn.lab.trace.part import First
from longturn.lab.trace.requests import write_requests

__all__ = ["FORMATS", "Blocks", "First", "Trace", "TraceRequest", "open_trace", "write_requests"]
