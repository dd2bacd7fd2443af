"""What the user demanded, in the user's own words: a model may point at them, but never words them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from longturn.conversation.parts import Message, Text

# Words by which people forbid, demand or choose. English first; the commonest of some other languages.
_DEMANDS = re.compile(
    r"\b(?:must|never|always|do not|don['\u2019]?t|only|make sure|ensure|avoid|prefer|instead of|not allowed|forbidden"
    r"|required?|no longer|from now on|remember|without|should(?: not|n['\u2019]?t)?|cannot|can['\u2019]?t"
    r"|at (?:most|least)|niemals|nie|immer|muss|darf|nur|kein\w*|jamais|toujours|doit|uniquement"
    r"|nunca|siempre|debe|solo)\b"
    r"|不要|必须|總是|总是|不得|禁止|只能|务必|しないで|必ず|常に",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?。！？\n]*(?:[.!?](?!\s|$)[^.!?。！？\n]*)*[.!?。！？]?")  # noqa: RUF001
_LONGEST = 400
_ALIKE = 0.6
_QUOTES = "\"'`“”‘’„«»*_ "  # noqa: RUF001


@dataclass(frozen=True, slots=True)
class Quote:
    """Words of the user. seq: number of the message; text: one sentence of it, spaces apart as it was said."""

    seq: int
    text: str


def constraints(
    messages: Mapping[int, Message], last: int, pointed: Iterable[str], room: int
) -> tuple[list[Quote], int]:
    """What the user demanded up to message `last`, in the order in which it was said, once each; and how many demands
    there was no room for.

    pointed: lines in which a model says what it takes for a demand. Each counts only as the sentence of the user that
    it quotes, or that shares most words with it. Sentences that sound like a demand are added, the newest first, while
    there are `room` characters.
    """
    said = [quote for seq, text in _user_texts(messages, last) for quote in _sentences(seq, text)]
    order = {quote: number for number, quote in enumerate(said)}
    chosen = {quote for line in pointed if (quote := _meant(line, said)) is not None}
    demanding = [quote for quote in said if _DEMANDS.search(quote.text)]
    wanted: dict[str, Quote] = {}
    for quote in [*sorted(chosen, key=order.__getitem__, reverse=True), *reversed(demanding)]:
        wanted.setdefault(quote.text.casefold(), quote)
    kept: list[Quote] = []
    for quote in wanted.values():
        room -= len(quote.text)
        if room < 0:
            break
        kept.append(quote)
    return sorted(kept, key=order.__getitem__), len(wanted) - len(kept)


def user_texts(messages: Mapping[int, Message], last: int) -> list[str]:
    """All that the user said up to message `last`."""
    return [text for _, text in _user_texts(messages, last)]


def _user_texts(messages: Mapping[int, Message], last: int) -> Iterator[tuple[int, str]]:
    for seq, message in messages.items():
        if message.role == "user" and seq <= last:
            for part in message.parts:
                if isinstance(part, Text) and not part.synthetic:
                    yield seq, part.text


def _sentences(seq: int, text: str) -> Iterator[Quote]:
    for match in _SENTENCE.finditer(text):
        sentence = " ".join(match[0].split()).lstrip("-*• ")
        if sentence:
            cut = sentence if len(sentence) <= _LONGEST else sentence[:_LONGEST] + "…"
            yield Quote(seq, cut)


def _meant(line: str, said: list[Quote]) -> Quote | None:
    """The sentence that a line quotes or rewords; the newest where there are several."""
    wanted = " ".join(re.sub(r"\s*\(message \d+\)\s*$", "", line).lstrip("-*•0123456789. ").split()).strip(_QUOTES)
    words = set(re.findall(r"\w+", wanted.casefold()))
    if len(words) < 2:  # "(none)", or a word that says nothing alone
        return None
    best, score = None, _ALIKE
    for quote in reversed(said):
        lowered = quote.text.casefold()
        if wanted.casefold() in lowered:
            return quote
        shared = len(words & set(re.findall(r"\w+", lowered))) / len(words)
        if shared > score:
            best, score = quote, shared
    return best
