"""All mechanisms: who detects them, in which order, and what mends them."""

from __future__ import annotations

from longturn.explain.detectors import history, identity, keeping, marks, serialisation, usage, volatile
from longturn.explain.detectors.refused import refused
from longturn.explain.finding import Detector

ANYWHERE: tuple[tuple[str, Detector], ...] = (
    ("too_many_marks", refused("too_many_marks")),
    ("mark_on_empty_text", refused("mark_on_empty_text")),
    ("explicit_cache_conflict", refused("explicit_cache_conflict")),
    ("routing", identity.elsewhere),
    ("cache_key", identity.cache_key),
    ("setting_changed", identity.setting_changed),
)
"""Looked for in any two requests, before their content is. The first that fits is the verdict."""

CONTENT: tuple[tuple[str, Detector], ...] = (
    ("tools_reordered", serialisation.tools_reordered),
    ("key_order", serialisation.key_order),
    ("whitespace", serialisation.whitespace),
    ("history_rewritten", history.compacted),
    ("thinking_stripped", history.thinking_stripped),
    ("sliding_window", history.sliding_window),
    ("image_changed", history.image_changed),
    ("moved_segment", history.moved_segment),
    ("client_nonce", volatile.client_nonce),
    ("volatile_text", volatile.volatile_text),
    ("message_grew", history.message_grew),
    ("cold_fanout", keeping.cold_fanout),
    ("setting_changed", identity.tools_changed),
    ("volatile_text", volatile.system_changed),
    ("history_rewritten", history.history_rewritten),
)
"""Looked for where the later request does not begin with all of the earlier one."""

APPENDED: tuple[tuple[str, Detector], ...] = (
    ("usage_double_count", usage.usage_double_count),
    ("history_rewritten", history.compacted),
    ("no_marks", marks.no_marks),
    ("body_order", serialisation.body_order),
    ("below_minimum", marks.nothing_kept),
    ("ttl_expired", keeping.ttl_expired),
    ("ttl_expired", keeping.life_changed),
    ("lookback_exceeded", marks.lookback_exceeded),
    ("marks_not_resent", marks.marks_not_resent),
    ("image_changed", keeping.image_toggled),
    ("cold_fanout", keeping.cold_fanout),
    ("routing", keeping.routing),
    ("below_minimum", marks.below_minimum),
)
"""Looked for where it does, or where nothing of the earlier one that was cached has changed."""

FIXES = {
    "volatile_text": "Put what changes behind the last mark or into the newest user message, or freeze it per session.",
    "client_nonce": "Stop the client or proxy from adding that line, or take it out before the request is sent.",
    "tools_reordered": "Sort the tools by name before each request.",
    "key_order": "Serialise with one canonical serializer: keep keys as they were first sent, or sort them always.",
    "body_order": "Write the body always in the order tools, system, messages.",
    "history_rewritten": "Leave history as it was sent; prune rarely and much at once, when it pays for the rewrite.",
    "sliding_window": "Drop many old messages at once and seldom, or compact them, instead of one with every request.",
    "moved_segment": "Leave a remark where it was first sent and append the next one, or keep it out of the history.",
    "image_changed": "Keep the encoded bytes of images and send those again; bring images in early, or not at all.",
    "thinking_stripped": "Send reasoning blocks back exactly as they came, signatures included.",
    "whitespace": "Send answers back byte for byte: no trimming, no joining, no formatting.",
    "mark_on_empty_text": "Leave empty text blocks away, and mark the last block that has content.",
    "too_many_marks": "Keep at most four marks: tools, system, and the two latest turns. Remove older ones.",
    "lookback_exceeded": "Set another mark at most 20 positions behind the last one that was written.",
    "ttl_expired": "Ask for a longer time to live, or send something in time; a hit renews it for free.",
    "message_grew": "Send what is new as a message or block of its own, behind the one that was sent.",
    "marks_not_resent": "Send earlier requests' marks again, and keep to one mode: only marked ends are looked up.",
    "cache_key": "Use one stable key, or cached content, per conversation.",
    "routing": "Pin the conversation to one model, provider and region; use a stable cache key or session header.",
    "setting_changed": "Freeze settings and tools per conversation, or change them where a new prefix is due anyway.",
    "cold_fanout": "Send one request first, and the others once its answer has begun.",
    "usage_double_count": "Count as the provider does: OpenAI and Gemini include cached tokens, Anthropic does not.",
    "no_marks": "Set cache_control (or a breakpoint) after the stable part and on the newest message.",
    "explicit_cache_conflict": "Put system instruction, tools and tool config into the cached content, and only there.",
    "below_minimum": "Mark a longer prefix, or none: this one is too short to be kept.",
    "none": "Nothing to mend.",
}
"""Mechanism -> what mends it."""

MECHANISMS = tuple(FIXES)
