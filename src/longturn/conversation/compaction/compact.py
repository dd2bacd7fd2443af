"""`compact`: from the wish for a summary to the edit that puts it in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile

from longturn.conversation.compaction.asking import Ask, Asking, Messages, said_by_user, text_of
from longturn.conversation.compaction.guards import check_whole, summary_tokens
from longturn.conversation.compaction.instruction import instruction, once_more
from longturn.conversation.compaction.summary import Known, compose, known, problems
from longturn.conversation.edits.compact import Compact
from longturn.conversation.edits.contract import NeedsSummary
from longturn.conversation.models.contract import Answer, ModelRequest, function_of
from longturn.conversation.view.fold import View
from longturn.conversation.view.render import Rendered, render
from longturn.conversation.window import Window
from longturn.errors import ConfigError, ContextOverflow, ProviderError

_BYTES_PER_TOKEN = 4
_WORDS_PER_TOKEN = 0.6


@dataclass(frozen=True, slots=True)
class Compaction:
    """edit: to be made in the history; answers: of all requests that it took, each to be counted; problems: what is
    still wrong with the model's words, which are used as far as they go."""

    edit: Compact
    answers: tuple[Answer, ...]
    problems: tuple[str, ...]


async def compact(
    view: View, need: NeedsSummary, ask: Ask, window: Window, like: ModelRequest | None = None
) -> Compaction:
    """Have the summary written that `need` asks for, and make the edit of it.

    The request is what was sent last, with one message more; tools are offered as before and only their use is
    forbidden, so that a provider's cache holds all but the end. What does not fit is asked for in parts. A summary with
    something wrong is asked for once more; then it is taken as it is, because what counts most is known without it.

    like: a request of the turn, whose other fields (session, files, temperature) are taken over. Changes nothing.
    Raises ConfigError while a call waits for its result or would be parted from it, ContextOverflow where not even one
    message fits, and what `ask` raises.
    """
    if view.waiting:
        raise ConfigError("a call waits for its result: answer it before the conversation is compacted")
    check_whole(view.items, need)
    rendered = render(view)
    asking = Asking(
        ask, replace(like or ModelRequest(()), tools=rendered.tools, use_tools=False, max_output=window.output)
    )
    about = known(view, need)
    tokens = summary_tokens(window)
    wish = instruction(
        words=round(tokens * _WORDS_PER_TOKEN),
        names=about.names,
        merge=bool(about.earlier),
        tail=any(item.message > need.last and not item.fixed for item in view.items),
    )
    answer, body = await _first_answer(asking, rendered, need, wish)
    text, wrong = await _bettered(asking, answer, body, wish, about)
    recall = any(function_of(tool).get("name") == "recall" for tool in rendered.tools)
    # Scripts differ in how many bytes, and so about tokens, a character has.
    room = tokens * _BYTES_PER_TOKEN * len(text) // max(len(text.encode()), 1) or tokens
    summary = compose(text, about, room=room, recall=recall)
    edit = Compact.after(need, summary, view.estimate.tokens("summary", len(summary.encode())))
    return Compaction(edit, tuple(asking.answers), tuple(wrong))


async def _first_answer(asking: Asking, rendered: Rendered, need: NeedsSummary, wish: str) -> tuple[Answer, Messages]:
    """An answer, and the messages it sums up: all that was sent, or else up to the range's end, or else in parts."""
    numbered = list(zip(rendered.numbers, rendered.messages, strict=True))
    # What the user said last was not sent yet, and would be taken for what is to be answered.
    while numbered and numbered[-1][1]["role"] == "user" and numbered[-1][0] > need.last:
        numbered.pop()
    everything = [message for _, message in numbered]
    up_to_end = [message for _, message in takewhile(lambda pair: pair[0] <= need.last, numbered)]
    if len(up_to_end) < len(everything):
        try:
            return await asking.answer([*everything, said_by_user(wish)]), everything
        except ContextOverflow:
            pass
    head = list(takewhile(lambda message: message["role"] == "system", up_to_end))
    return await asking.in_parts(head, up_to_end[len(head) :], wish)


async def _bettered(asking: Asking, answer: Answer, body: Messages, wish: str, about: Known) -> tuple[str, list[str]]:
    """The text of `answer`, or of a second one where something is wrong with it, and what is wrong still."""
    text = text_of(answer)
    wrong = problems(text, about, cut=answer.finish == "length")
    if not wrong:
        return text, wrong
    if text.strip():
        more = [said_by_user(wish), {"role": "assistant", "content": text}, said_by_user(once_more(wrong))]
    else:
        more = [said_by_user(f"{wish}\n\n{once_more(wrong)}")]
    try:
        second = await asking.answer([*body, *more])
    except ProviderError:
        if text.strip():
            return text, wrong
        raise
    second_text = text_of(second)
    still_wrong = problems(second_text, about, cut=second.finish == "length")
    if text.strip() and (not second_text.strip() or len(still_wrong) > len(wrong)):
        return text, wrong
    return second_text, still_wrong
