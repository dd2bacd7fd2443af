"""The prompt caching that providers promise, kept on the engine's real cache: one small file per provider."""
