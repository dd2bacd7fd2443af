"""History that does not stay as it was sent: shortened, shifted, moved, grown or compacted."""

from __future__ import annotations

import re

from longturn.dialects.segments import Segment
from longturn.explain.finding import Finding
from longturn.explain.pair import Pair
from longturn.explain.verdict import common

SUMMARY = re.compile(
    r"(?i)continued from a previous conversation|summary of (the|our|this|earlier|previous|prior)\b"
    r"|conversation summary|<(conversation[_-])?summary>|\bcompacted\b"
    r"|summari[sz]ed (conversation|history)|summary of conversation"
)
LEAD = 2000
"""Characters at the beginning of a text in which it says that it is a summary."""
STUB = re.compile(
    r"(?i)^\W*[\w ]{0,40}\b(pruned|truncated|omitted|removed|elided|cleared|trimmed)\b.{0,80}$", re.DOTALL
)
"""A text that stands for one that was taken out."""
SHORT = 8
"""Characters of a text below which its return elsewhere says nothing."""
EPHEMERAL = ("<", "[", "(")


def compacted(pair: Pair) -> Finding | None:
    """The history was replaced by a summary on purpose: a compaction block, or a text that says so."""
    if any(s.kind == "compaction" and not any(s.same(old) for old in pair.old) for s in pair.new):
        if pair.append_only and pair.hit is not False:
            return None
        return Finding("a compaction block stands for what came before it", 0.95, intentional=True)
    b = pair.after
    if b is None or b.kind != "text" or pair.append_only or pair.last_turn or pair.depth == 0:
        return None
    if not SUMMARY.search(b.text[:LEAD]):
        return None
    if pair.before is not None and SUMMARY.search(pair.before.text[:LEAD]) and b.level == "system":
        return None
    rest = pair.old[pair.index + 1 :]
    if len(pair.new) < len(pair.old) or not any(s.same(old) for s in pair.new[pair.index + 1 :] for old in rest[:1]):
        return Finding("a summary stands for what came before it", 0.85, intentional=True)
    return None


def thinking_stripped(pair: Pair) -> Finding | None:
    """Reasoning that was sent before, or its signature, is left out."""
    a, b = pair.before, pair.after
    if a is None or a.level != "messages":
        return None
    gone = [leaf for leaf in pair.changes if leaf.after is None and SIGNED.search(leaf.path)]
    if pair.changes and len(gone) == len(pair.changes):
        return Finding("the signature of reasoning is left out", 0.9)
    if pair.changes and a.kind == "thinking" and all(leaf.after in (None, "") for leaf in pair.changes):
        return Finding("reasoning of the history is emptied", 0.9)
    if _unsigned(a) and b is not None and b.kind == a.kind and _unsigned(a) == b.value:
        return Finding("the signature of reasoning is left out", 0.9)
    if a.kind != "thinking":
        return None
    end = next((i for i in range(pair.index, len(pair.old)) if pair.old[i].kind != "thinking"), None)
    if b is None or b.kind == "thinking" or (end is not None and not _alike(pair.old[end], b)):
        return None
    return Finding("reasoning that was part of the history is left out", 0.95)


SIGNED = re.compile(r"(signature|thoughtSignature|thought_signature|encrypted_content|reasoning_details)$")


def image_changed(pair: Pair) -> Finding | None:
    """An image is encoded anew, refers to another place, or has gone or come in the history."""
    a, b = pair.before, pair.after
    if pair.grown or pair.append_only:
        return None
    if a is not None and a.kind == "image":
        if pair.removed and any(a.same(s) for s in pair.new[pair.index :]):
            return None
        if b is not None and any(a.same(s) for s in pair.new[pair.index + 1 :]):
            return None
        return Finding("an image of the history is no longer the same", 0.95 if b and b.kind == "image" else 0.85)
    if a is not None and b is not None and b.kind == "image":
        return Finding("an image was put into the history", 0.8)
    if pair.changes and all(IMAGE_DATA.search(leaf.path) for leaf in pair.changes):
        return Finding("an image inside a tool result is no longer the same", 0.85)
    return None


IMAGE_DATA = re.compile(r"\.(source|image_url|inlineData|inline_data|fileData)\b|\.image_url$")


def message_grew(pair: Pair) -> Finding | None:
    """Text was added to a message that had already been sent, instead of sending another one."""
    if pair.grown:
        return Finding("parts were added to the last message that had been sent", 0.9)
    if len(pair.changes) != 1:
        return None
    texts = pair.changes[0].texts
    if texts and texts[0].strip() and texts[1].startswith(texts[0]):
        return Finding("the text that was sent before is only the beginning of what stands there now", 0.9)
    return None


def sliding_window(pair: Pair) -> Finding | None:
    """The oldest messages have gone, and all the others are there."""
    a = pair.before
    if a is None or not pair.removed or not _first_messages(pair):
        return None
    gone, kept = pair.old[pair.index :][: pair.removed], pair.old[pair.index + pair.removed :]
    rest = pair.new[pair.index : pair.index + len(kept)]
    whole = (pair.index == 0 or pair.old[pair.index - 1].message != a.message) and gone[-1].message != kept[0].message
    if not whole or {s.rendered for s in gone} & {s.rendered for s in pair.new[pair.index :]}:
        return None
    if len(rest) < len(kept) or not all(x.same(y) for x, y in zip(kept, rest, strict=True)):
        return None
    messages = len({s.message for s in gone})
    return Finding(f"the oldest {messages} messages are dropped, the rest is as before", 0.95)


def moved_segment(pair: Pair) -> Finding | None:
    """Something that was sent before stands further behind now; or a last remark was only meant for one request."""
    a, b = pair.before, pair.after
    if a is None or a.level == "tools":
        return None
    if a.kind != "image" and len(a.text) < SHORT:
        return None
    between = pair.new[pair.index : pair.index + pair.inserted]
    if between and not any(s.role in ANSWERS for s in between):
        return None
    later = pair.new[pair.index :]
    if any(a.same(s) or (a.kind == s.kind and a.text == s.text) for s in later):
        return Finding(f"{a.name} of the earlier request stands further behind in the later one", 0.93)
    gone = _cut_out(pair)
    if gone and len(gone) >= SHORT:
        if any(gone in s.text for s in pair.new[pair.index + 1 :]):
            return Finding("a piece of text stands further behind in the later request", 0.9)
        if a.message == pair.old[-1].message and a.kind == "text" and gone.startswith(EPHEMERAL):
            return Finding("a remark at the end of the earlier request is not repeated in the later one", 0.75)
    trailing = a.message == pair.old[-1].message and a.kind in ("text", "image") and a.role not in ANSWERS
    asked = pair.index > 0 and pair.old[pair.index - 1].level == "messages"
    if trailing and asked and pair.old[pair.index - 1].role not in ANSWERS and b is not None and b.role in ANSWERS:
        return Finding("the last part of the earlier request is missing at its place", 0.8)
    return None


ANSWERS = ("assistant", "model")


def history_rewritten(pair: Pair) -> Finding | None:
    """Any other change of what had been sent: pruned, truncated, or edited."""
    a, b = pair.before, pair.after
    if pair.append_only or a is None or b is None or pair.depth < 2:
        return None
    if pair.last_turn and a.kind == b.kind == "text" and not STUB.search(b.text):
        return None
    shorter = len(b.text) < len(a.text)
    what = "was shortened or replaced" if shorter else "was replaced"
    return Finding(f"{a.name} {what} after it had been sent", 0.85 if pair.changes else 0.7)


def _unsigned(segment: Segment) -> object:
    """What Gemini's text parts hold beside their signature; None where there is none."""
    value = segment.value
    if not isinstance(value, dict) or not any(SIGNED.search(key) for key in value):
        return None
    rest = {key: item for key, item in value.items() if not SIGNED.search(key)}
    return rest["text"] if set(rest) == {"text"} else rest


def _alike(old: Segment, new: Segment) -> bool:
    """Whether one may be the other, perhaps changed for a reason of its own."""
    return old.same(new) or (old.role, old.kind) == (new.role, new.kind)


def _first_messages(pair: Pair) -> bool:
    """Whether both part at the first message, or right after one that is always kept."""
    first = next((s.message for s in pair.old if s.level == "messages"), -1)
    return pair.before is not None and pair.before.level == "messages" and pair.before.message <= first + 1


def _cut_out(pair: Pair) -> str:
    """The text that was taken out, if all that happened is that one piece was taken out."""
    texts = pair.changes[0].texts if len(pair.changes) == 1 else None
    if texts is None:
        return ""
    before, after = texts
    start = common(before, after)
    end = min(common(before[::-1], after[::-1]), len(after) - start)
    return before[start : len(before) - end].strip() if start + end == len(after) else ""
