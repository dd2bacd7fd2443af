"""Tokens to text while they arrive, and the search for stop strings in that text. Both cost O(new), not O(all)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# A character has at most four bytes, so an unfinished one spans at most three tokens.
UNFINISHED = 3
# More tokens than this without a clean end are broken bytes, not a character on its way.
MAX_PENDING = 8
REPLACEMENT = "\ufffd"


class StreamDetokenizer:
    """Gives out the text of a token stream as soon as it is final.

    What a token looks like depends on the one before it (a sentencepiece decoder strips the first space), so each step
    decodes a short window: tokens already given out, as context, and the pending ones. `prompt_tail_ids` is the context
    of the very first token: give the last few prompt tokens when the answer continues the prompt's text.
    """

    def __init__(
        self, tokenizer: Any, prompt_tail_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder if skip_special_tokens else {}
        self._skipped = frozenset(token for token, entry in added.items() if entry.special)
        self._window = [token for token in prompt_tail_ids if token not in self._skipped]
        self._given = len(self._window)
        # A prompt may end within a character: what completes it belongs to the answer.
        self._context = self._decode(self._window).rstrip(REPLACEMENT)

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens and return the new text that is final, perhaps none. Mutates this stream."""
        self._window += [token for token in token_ids if token not in self._skipped]
        if self._given == len(self._window):
            return ""
        text = self._decode(self._window)
        if len(text) > len(self._context) and not text.endswith(REPLACEMENT):
            return self._give(text, len(self._window))
        if len(self._window) - self._given <= MAX_PENDING:
            return ""
        return self._give_before_unfinished(text)

    def finish(self) -> str:
        """Return the rest, with U+FFFD for a character that was never finished. The stream is then at its end."""
        return self._give(self._decode(self._window), len(self._window))

    def _give_before_unfinished(self, text: str) -> str:
        end = len(self._window)
        for cut in range(end - UNFINISHED, end):
            head = self._decode(self._window[:cut])
            # Where head and tail decode to the whole, the cut is not inside a character.
            if head + self._decode(self._window[cut:]) == text:
                return self._give(head, cut)
        return self._give(text, end)

    def _give(self, text: str, end: int) -> str:
        if text.startswith(self._context):
            new = text[len(self._context) :]
        else:
            # A byte-fallback decoder spoils a whole run of bytes, given out or not, for one bad byte in it.
            new = self._decode(self._window[self._given : end])
        self._window = self._window[self._given :]
        self._given = end - self._given
        self._context = self._decode(self._window[: self._given])
        return new

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


class StopMatcher:
    """Lets text through up to the first stop string, which is never given out, not even its beginning.

    The first to be *complete* wins, so the result does not depend on how the text was cut into pushes. `matched` is the
    stop string found, or None.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Take text; return what can be given out and whether a stop string was reached. Mutates this matcher."""
        if self.matched is not None:
            return "", True
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return text[:start], True
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """Return what was held back, now that no more text can complete a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
