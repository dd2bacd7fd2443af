"""Caches are kept apart by model, by cache key and by settings: what differs there finds nothing of the other's."""

from __future__ import annotations

from longturn.dialects.segments import LEVELS, Setting
from longturn.explain.finding import Finding
from longturn.explain.leaves import leaves, written
from longturn.explain.pair import Pair
from longturn.explain.verdict import Divergence

UNLISTED = (("openai", ["tool_choice"]), ("openai-chat", ["tool_choice"]), ("anthropic", ["betas"]))
"""What need not be part of the prefix: the provider does not list it, or not each of its values is."""
ROUGHLY = 1.25
"""How much more than estimated has to be found to be more for certain."""
PLACES = ("provider", "inference_geo")
"""Parts of a body that say where it is to be computed."""


def elsewhere(pair: Pair) -> Finding | None:
    """Another model, provider or region: no cache is shared between two."""
    for place in PLACES:
        old, new = pair.a.body.get(place), pair.b.body.get(place)
        if old != new:
            at = Divergence.between(place, f"$.{place}", written(old), written(new))
            return Finding(f"{place} changes: the cache is kept where a request was computed", 0.8, at=at, kept=0)
    a, b = pair.a.prompt.model, pair.b.prompt.model
    if not a or not b or a == b:
        return None
    return Finding(
        f"{b} was asked after {a}: each model has a cache of its own",
        0.95,
        at=Divergence.between("model", "$.model", a, b),
        kept=0,
    )


def cache_key(pair: Pair) -> Finding | None:
    """OpenAI's prompt_cache_key, or Gemini's cachedContent, names another cache."""
    for name, path, a, b in (
        ("prompt_cache_key", "$.prompt_cache_key", pair.a.prompt.cache_key, pair.b.prompt.cache_key),
        ("cachedContent", "$.cachedContent", pair.a.prompt.handle, pair.b.prompt.handle),
    ):
        if a != b and (name == "prompt_cache_key" or (a and b)):
            return Finding(
                f"{name} changes inside a conversation",
                0.9 if a and b else 0.7,
                at=Divergence.between(name, path, a or "", b or ""),
                kept=0,
            )
    a, b = pair.a.prompt.handle, pair.b.prompt.handle
    if a and not b:
        # It stood before all that the request itself holds.
        at = Divergence.between("cachedContent", "$.cachedContent", a, "")
        return Finding("cachedContent is no longer named, and what it holds no longer sent", 0.9, at=at, kept=0)
    return None


def setting_changed(pair: Pair) -> Finding | None:
    """A parameter that is part of the cached prefix, where its level is reached before the content differs."""
    a, b = pair.a.prompt.settings, pair.b.prompt.settings
    changed = sorted(
        (name for name in {*a, *b} if _value(a.get(name)) != _value(b.get(name))),
        key=lambda name: (_level(a.get(name) or b[name]), name),
    )
    if not changed:
        return None
    setting = a.get(changed[0]) or b[changed[0]]
    kept = pair.first_of(_level(setting))
    # Not every feature is part of the prompt.
    if _level(setting) > pair.depth or (changed == ["betas"] and _more_than(pair, kept)):
        return None
    old, new = _value(a.get(changed[0])), _value(b.get(changed[0]))
    if old is not None and new is not None:
        first = next(leaves(old, new, setting.path), None)
        if first is None:
            return None
        at = Divergence.between(changed[0], first.path, written(first.before), written(first.after))
    else:
        at = Divergence.between(changed[0], setting.path, written(old), written(new))
    provider = pair.a.prompt.provider
    disclosed = provider != "gemini" and (provider, changed) not in UNLISTED
    return Finding(
        f"{', '.join(changed)} changed: part of what is cached from {setting.level} on",
        0.9 if disclosed else 0.5,
        at=at,
        kept=kept,
    )


def tools_changed(pair: Pair) -> Finding | None:
    """Tools came, went or were changed."""
    if pair.append_only or pair.depth > 0:
        return None
    old = sum(segment.level == "tools" for segment in pair.old)
    new = sum(segment.level == "tools" for segment in pair.new)
    how = f"{old} tools become {new}" if old != new else "a tool is not defined as before"
    return Finding(f"{how}: tools come first in the prompt", 0.85)


def _more_than(pair: Pair, segments: int) -> bool:
    """Whether more was found than the first `segments` segments, and so nothing changed that counts from there on."""
    use = pair.b.use
    return use is not None and (bool(pair.hit) or use.cached_total > ROUGHLY * pair.a.tokens(segments))


def _value(setting: Setting | None) -> object:
    return setting.value if setting else None


def _level(setting: Setting) -> int:
    return LEVELS.index(setting.level)
