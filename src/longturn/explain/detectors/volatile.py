"""Text that differs on every request: clocks, counters, identifiers, and lines that a client adds itself."""

from __future__ import annotations

import re

from longturn.explain.finding import Finding
from longturn.explain.pair import Pair

NAMED = re.compile(r"(?i)\b(cch|nonce|cache[-_ ]?bust(?:er)?|salt|rand(?:om)?)(\W{1,4})[\w+/=-]{3,}")
HEADER = re.compile(r"(?im)^(\[?x-[\w-]+ *: *).*$")
KEYED = re.compile(r"(?<=\w=)[0-9a-f]{4,16}\b")
LETTER = re.compile(r"[a-f]")
HEAD = 200
"""Bytes at the beginning of a prompt in which any short `key=hex` is taken for a nonce."""

NAMES = (
    r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
    r"|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?|[ap]m|utc|gmt|cest|cet|[ecmp][ds]t|morning|afternoon|evening|night"
)
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
IDENTIFIER = r"\w*\d\w*"
CHANGING = re.compile(rf"(?i)\b(?:{UUID}|{NAMES}|{IDENTIFIER})\b")
HEXADECIMAL = re.compile(r"(?i)\b[0-9a-f]{6,}\b")
RUNS = re.compile(r"#(?:[\s,.:/+-]*#)+[.Z]?")
FOLDER = re.compile(r"(?:~|\b[A-Z]:)?(?:[/\\][\w.@~+-]+){2,}")


def client_nonce(pair: Pair) -> Finding | None:
    """A line that some client or proxy adds, with a value that is new on each request."""
    texts = [leaf.texts for leaf in pair.changes]
    if pair.before is None or pair.before.level == "tools" or not texts or None in texts:
        return None
    head = pair.divergence is not None and pair.divergence.offset < HEAD and pair.index == pair.first_of(1)
    pairs = [both for both in texts if both]
    named = all(_without_names(a) == _without_names(b) for a, b in pairs)
    keyed = head and all(KEYED.sub("#", a) == KEYED.sub("#", b) for a, b in pairs)
    lettered = any(LETTER.search("".join(KEYED.findall(text))) for both in pairs for text in both)
    if named or (keyed and lettered):
        return Finding("only a value in a line that a client adds differs", 0.95 if named and head else 0.85)
    return None


def volatile_text(pair: Pair) -> Finding | None:
    """Only times, dates, counters, identifiers or (ahead of the messages) folders differ."""
    texts = [leaf.texts for leaf in pair.changes]
    if pair.before is None or not texts or None in texts:
        return None
    if pair.before.level == "messages" and (pair.removed or (pair.last_turn and pair.index + 1 == len(pair.old))):
        # Numbered messages of which some are gone, or another question.
        return None
    # What a client tells of its surroundings stands in the system prompt, or opens the conversation.
    ahead = pair.before.level != "messages" or pair.before.message == pair.old[pair.first_of(2)].message
    if all(_steady(a, folders=ahead) == _steady(b, folders=ahead) for a, b in (both for both in texts if both)):
        return Finding("only times, counters or identifiers differ", 0.95 if ahead else 0.8)
    return None


def system_changed(pair: Pair) -> Finding | None:
    """Any other change of the system prompt: something is put in that is not the same from request to request."""
    a, b = pair.before, pair.after
    if "system" not in (a.level if a else "", b.level if b else "") or pair.depth == 0:
        return None
    return Finding("the system prompt differs from request to request", 0.6)


def _without_names(text: str) -> str:
    return NAMED.sub(r"\1#", HEADER.sub(r"\1#", text))


def _steady(text: str, *, folders: bool) -> str:
    """The text with all that changes by itself replaced by one sign."""
    if folders:
        text = FOLDER.sub("#", text)
    return RUNS.sub("#", HEXADECIMAL.sub("#", CHANGING.sub("#", text)))
