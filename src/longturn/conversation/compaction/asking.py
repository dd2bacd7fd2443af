"""The requests of a compaction: all that fits at once, and in parts what does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from longturn.conversation.compaction.instruction import so_far
from longturn.conversation.models.contract import Answer, ModelRequest
from longturn.conversation.parts import Text
from longturn.errors import ContextOverflow

Ask = Callable[[ModelRequest], Awaitable[Answer]]
"""Has a request answered. Raises ContextOverflow where it does not fit, other ProviderErrors for all else."""
Messages = list[dict[str, Any]]

_MOST_REQUESTS = 40
_LEAST = 2_000


class Asking:
    """Requests that differ in their messages only. answers: all so far, to be counted."""

    def __init__(self, ask: Ask, like: ModelRequest) -> None:
        self.answers: list[Answer] = []
        self._ask = ask
        self._like = like

    async def answer(self, messages: Messages) -> Answer:
        """The answer to `messages`. Raises ContextOverflow where they do not fit, or too many requests were made."""
        if len(self.answers) >= _MOST_REQUESTS:
            raise ContextOverflow(
                f"there is no summary after {_MOST_REQUESTS} requests: the model's window is far smaller than it is "
                "said to be. Give its real size"
            )
        answer = await self._ask(replace(self._like, messages=messages))
        self.answers.append(answer)
        return answer

    async def in_parts(
        self, head: Messages, body: Messages, wish: str, *, follows: bool = False
    ) -> tuple[Answer, Messages]:
        """The answer to `wish` about `body`, and the messages that it was asked behind.

        head: system text, sent with every part; follows: whether `body` begins with a summary of what came before it.
        Where it does not fit, its first half is summed up, and then the rest behind that summary; where one step alone
        does not fit, the middle of its longest text is left out.
        """
        try:
            return await self.answer([*head, *body, said_by_user(wish)]), [*head, *body]
        except ContextOverflow as error:
            cut = _middle(body, 2 if follows else 1)
            if cut is None:
                return await self.in_parts(head, _shortened(body, error), wish, follows=follows)
        first, _ = await self.in_parts(head, body[:cut], wish, follows=follows)
        return await self.in_parts(head, _behind(text_of(first), body[cut:]), wish, follows=True)


def said_by_user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def text_of(answer: Answer) -> str:
    """The words of an answer, without its reasoning and calls."""
    return "".join(part.text for part in answer.parts if isinstance(part, Text))


def _middle(body: Messages, least: int) -> int | None:
    """Where a step begins that is nearest to the middle, but no earlier than `least`; a result stays with its call."""
    sizes = [_size(message) for message in body]
    half = sum(sizes) / 2
    starts = [n for n in range(least, len(body)) if body[n]["role"] in ("user", "assistant")]
    return min(starts, key=lambda n: abs(sum(sizes[:n]) - half), default=None)


def _size(message: dict[str, Any]) -> int:
    return len(str(message.get("content", ""))) + len(str(message.get("tool_calls", "")))


def _behind(summary: str, rest: Messages) -> Messages:
    """`rest` behind a summary; as one message with a user's, because some models want the roles to alternate."""
    first = rest[0]
    if first["role"] != "user":
        return [said_by_user(so_far(summary)), *rest]
    content = first["content"]
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [{**first, "content": [{"type": "text", "text": so_far(summary)}, *texts]}, *rest[1:]]


def _shortened(body: Messages, error: ContextOverflow) -> Messages:
    """The same with half of its longest text. Raises `error` where all texts are short already."""
    lengths = [len(message["content"]) if isinstance(message.get("content"), str) else 0 for message in body]
    longest = max(range(len(body)), key=lengths.__getitem__)
    text = body[longest]["content"]
    if lengths[longest] < _LEAST:
        raise error
    quarter = len(text) // 4
    short = f"{text[:quarter]}\n[{len(text) - 2 * quarter:,} characters are left out here]\n{text[-quarter:]}"
    return [*body[:longest], {**body[longest], "content": short}, *body[longest + 1 :]]
