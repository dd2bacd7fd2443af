"""A comparison as one page that opens without a network."""

from longturn.lab.report.page import write_report

__all__ = ["write_report"]
