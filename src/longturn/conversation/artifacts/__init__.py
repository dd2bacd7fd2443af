"""Artifacts: contents too large for the view, kept whole by their digest, and the tools that get them back."""
