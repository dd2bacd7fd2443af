"""What a client that resends its whole history sends: the trace's prompts, with the server's own answers in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from longturn.dialects.engines import Engine, Way
from longturn.lab.live.workload import Call
from longturn.lab.trace.form import Ids
from longturn.lab.wire import Answer

# Common enough to be one token, with the space before, in the vocabularies of most models.
WORDS = tuple(
    f" {word}"
    for line in (
        "the of and to in is was for that with as on by he at from his it an are were which be this has had or one",
        "their not but who they have also its all her more two may other time first new after would about into some",
        "when out up many so no can what said over only then them most made part world years people under between",
        "through where since against school three city state during while both until house family same company four",
        "group early second small water place night work life great war head found later number day right long hand",
        "name high",
    )
    for word in line.split()
)


class Spoken(str):
    """Text of the model's, which a chat sends back as a message of the assistant."""


Piece = int | str
"""A token id, or text."""


class History:
    """The prompts of a run. Answers take the place of the trace's, wherever a later prompt repeats them.

    That needs a trace that tells its answers, and token ids of the server's where prompts are token ids; elsewhere the
    trace's own answers are sent. swapped: answers that took their place.
    """

    def __init__(self, engine: Engine, way: Way, model: str) -> None:
        self.way: Way = way
        self.swapped = 0
        self._fixed: dict[str, Any] = {
            "model": model,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(engine.ask if way == "ids" else {}),
        }
        self._latest: dict[str, tuple[Ids, list[Piece]]] = {}  # of each session: ids of the trace, what they became

    @property
    def path(self) -> str:
        """Where requests go."""
        return "/v1/chat/completions" if self.way == "chat" else "/v1/completions"

    def prompt(self, call: Call) -> list[Piece]:
        """The prompt of `call`, a piece for each of its ids; a branch of another session gets that one's answers."""
        prompt = self._made(call.ids)
        shared, best = 0, prompt
        for ids, became in self._latest.values():
            if (n := _shared(ids, call.ids)) > shared:
                shared, best = n, became
        prompt[:shared] = best[:shared]
        return prompt

    def body(self, call: Call, prompt: list[Piece]) -> dict[str, Any]:
        """The request."""
        body = self._fixed | {"max_tokens": call.output_tokens}
        match self.way:
            case "ids":
                return body | {"prompt": prompt}
            case "text":
                return body | {"prompt": "".join(map(str, prompt))}
            case "chat":
                return body | {"messages": _messages(prompt)}

    def sent(self, call: Call, prompt: list[Piece]) -> Ids:
        """The prompt as token ids, int64 [P]; of text the ids that its words were made from."""
        return np.asarray(prompt, dtype=np.int64) if self.way == "ids" else call.ids

    def answered(self, call: Call, prompt: list[Piece], answer: Answer) -> Ids | None:
        """Remember what later prompts will repeat (mutates), and return the answer as token ids, None if unknown."""
        self._latest[call.session] = call.ids, prompt
        told = len(answer.ids) == call.output_tokens if self.way == "ids" else bool(answer.text)
        if call.output is not None and told:
            n = len(call.output)
            became = [*answer.ids[:n]] if self.way == "ids" else [Spoken(answer.text), *[""] * (n - 1)]
            self._latest[call.session] = np.concatenate((call.ids, call.output)), [*prompt, *became]
            self.swapped += 1
        if self.way != "ids":
            return call.output
        return np.asarray(answer.ids, dtype=np.int64) if told else None

    def _made(self, ids: Ids) -> list[Piece]:
        return ids.tolist() if self.way == "ids" else [WORDS[i % len(WORDS)] for i in ids.tolist()]


def _shared(one: Ids, other: Ids) -> int:
    """Length of the common prefix."""
    n = min(len(one), len(other))
    differ = np.flatnonzero(one[:n] != other[:n])
    return int(differ[0]) if len(differ) else n


def _messages(prompt: list[Piece]) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    for piece in prompt:
        role = "assistant" if isinstance(piece, Spoken) else "user"
        if piece and (not messages or messages[-1]["role"] != role):
            messages.append({"role": role, "content": ""})
        if piece:
            messages[-1]["content"] += str(piece)
    return messages
