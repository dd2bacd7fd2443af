"""OpenAI's APIs over the engine: Chat Completions, Completions, Responses and what they keep."""
