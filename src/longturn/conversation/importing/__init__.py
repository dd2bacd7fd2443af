"""Conversations of other programs, and of other histories, taken in and given out as files."""
