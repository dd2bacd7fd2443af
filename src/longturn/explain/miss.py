"""Why our own engine computed tokens that were, or might have been, in its cache: the rules. The engine has the facts.

Of a provider one has to infer what happened. Of our own cache it is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Cause = Literal["evicted", "expired", "cleared", "damaged", "below_page", "salted_apart", "diverged", "never_stored"]
LossCause = Literal["evicted", "expired", "cleared", "damaged"]
SHORT = 16
"""Tokens below which a common beginning says nothing: chat templates begin alike."""

FIXES: dict[str, str] = {
    "evicted": "Give that tier more room or another one below it, or pin what is to come back.",
    "expired": "Ask for a longer time to live, or send something in time.",
    "cleared": "Nothing to mend: somebody emptied the tier.",
    "damaged": "Check the disk or the memory of that tier: what it holds cannot be read.",
    "below_page": "Nothing to mend in the request: smaller pages would reuse more.",
    "salted_apart": "Use one cache_salt for all requests that may share a prefix.",
    "diverged": "Send back what was said exactly as it came, and only append.",
    "never_stored": "Have the server keep what it computes: give its cache room, or turn it on.",
}
"""Cause -> what mends it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """How tokens left a tier. kept_in: the lower tier that had them then; ago: seconds; by: the request they made room
    for, as far as that may be told."""

    cause: LossCause
    tier: str
    tokens: int = 0
    kept_in: str | None = None
    ago: float | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of a prompt when it is admitted. Counts are in tokens, from its beginning where not said otherwise.

    found: served from the cache. stored: the longest prefix that was ever stored under its salt, as far as it may be
    reused. elsewhere: the same under the other salts of its client. behind: tokens that an earlier request of its
    session stored behind the place where both part; 0 where this one only appends. page: the least that is reused.
    loss: how the token at `found` left the cache, where it was in it.
    """

    found: int
    stored: int
    behind: int = 0
    elsewhere: int = 0
    page: int = 1
    loss: Loss | None = None


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a prompt was computed from token `at` on.

    evicted, expired, cleared: `tokens` tokens from there on had been stored and left `tier` `ago` seconds ago; expired
    says that they had been pinned or expected until some time before, cleared that somebody asked for it.
    damaged: they lie in `tier`, and could not be read whole.
    below_page: they are less than the cache reuses or keeps.
    salted_apart: they are stored under another salt of the same client.
    diverged: the prompt parts there from an earlier one, of which `tokens` further tokens were stored.
    never_stored: nothing else was stored; `tokens` of them had been computed, and were not kept.
    """

    cause: Cause
    at: int
    tokens: int = 0
    tier: str | None = None
    ago: float | None = None
    by: str | None = None

    def __str__(self) -> str:
        return f"{self.cause}: {self._sentence()}"

    @classmethod
    def read(cls, text: str) -> Miss | None:
        """The cause, place and number of tokens out of a miss that was written by `str`; None for any other text."""
        named, _, sentence = text.partition(": ")
        cause: Cause | None = next((cause for cause in get_args(Cause) if cause == named), None)
        at, tokens = re.search(r"from token ([\d,]+)", sentence), re.search(r"([\d,]+) tokens", sentence)
        return cause and cls(cause, _number(at), _number(tokens))

    @property
    def parted(self) -> bool:
        """Whether the prompt itself is another than what was stored, so that the cache has lost nothing of it."""
        return self.cause == "diverged" or (self.cause == "never_stored" and not self.tokens)

    def _sentence(self) -> str:
        lost = f"{self.tokens:,} tokens from token {self.at:,} on"
        match self.cause:
            case "damaged":
                return f"{lost} could not be read whole from {self.tier}"
            case "below_page":
                return f"{lost} are less than is reused at once"
            case "salted_apart":
                return f"{lost} are stored under another salt"
            case "diverged":
                return f"an earlier prompt goes on differently from token {self.at:,} on, for {self.tokens:,} tokens"
            case "never_stored":
                return (
                    f"{lost} were computed before, and not kept" if self.tokens else "nothing like it has been stored"
                )
        when = "" if self.ago is None else f" {self.ago:,.1f} s ago"
        whom = f" to make room for request {self.by}" if self.by else ""
        how = " after their protection had ended" if self.cause == "expired" else " by hand" * (self.cause == "cleared")
        return f"{lost} left {self.tier}{when}{whom}{how}"


def why(past: Past) -> Miss | None:
    """The verdict; None where everything that could be reused was."""
    at, lost, loss = past.found, past.stored - past.found, past.loss
    if loss is not None and loss.cause == "damaged":
        return Miss("damaged", at, max(lost, loss.tokens), loss.tier)
    if lost > 0:
        # What was kept below is whole pages: the rest of the last one is not.
        if lost < past.page and (loss is None or loss.kept_in):
            return Miss("below_page", at, lost)
        if loss is None:
            return Miss("never_stored", at, lost)
        if loss.kept_in == "disk":
            # It was there at that time, and no longer is. Its store evicts by itself, and does not say when.
            return Miss(loss.cause, at, lost, "disk")
        return Miss(loss.cause, at, lost, loss.tier, loss.ago, loss.by)
    known = max(past.found, past.stored)
    if past.elsewhere >= known + SHORT:
        return Miss("salted_apart", known, past.elsewhere - known)
    if past.behind and known >= SHORT:
        return Miss("diverged", known, past.behind)
    return Miss("never_stored", known) if known < SHORT else None


def _number(found: re.Match[str] | None) -> int:
    return int(found[1].replace(",", "")) if found else 0
