"""Edits of a view, one file each: what is sent instead of what was said. The history itself is never changed."""
