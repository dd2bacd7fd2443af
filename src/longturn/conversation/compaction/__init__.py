"""Compaction: a summary of what is no longer sent, asked for as a continuation of the running prefix, and checked."""
