"""How much of a model's context is kept for its answer, and the contexts that are known of well-known models."""

from __future__ import annotations

from longturn.conversation.window import Window

# Room for long edits, and yet not half of a context: what is reserved is also what is asked for at most.
MOST_OUTPUT = 16384
SHARE = 4


def limited(context: int, output: int | None = None, *, prompt: int | None = None) -> Window:
    """A window over `context` tokens. output: the most that the model answers; prompt: its limit of a prompt alone."""
    reserved = min(MOST_OUTPUT, max(1, context // SHARE), output or MOST_OUTPUT)
    return Window(context=context, output=reserved, input=prompt)


def known_window(name: str, provider: str) -> Window | None:
    """The window of a provider's model by `genai-prices`' data, None where it does not know the name."""
    from genai_prices import data_snapshot

    try:
        _, model = data_snapshot.get_snapshot().find_provider_model(name, None, provider, None)
    except LookupError:
        return None
    return limited(model.context_window) if model.context_window else None
