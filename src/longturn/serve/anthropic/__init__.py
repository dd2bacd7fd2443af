"""Anthropic's API over the engine: messages, counting, context editing, compaction."""
