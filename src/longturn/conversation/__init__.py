"""Conversations that never outgrow their window and never lose a word: history, views, edits, artifacts, meters."""
