"""What a model is told in order to get a summary. It stands behind the running prefix, all of which is cached."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.conversation.compaction.sections import TITLES, Section

_WANTED: dict[Section, str] = {
    "goal": "What the user wants in the end, and what of it is being done now.",
    "constraints": "Everything the user demanded, forbade or decided, as quotes of the user's exact words, one a line.",
    "discoveries": "What was found out and is needed further on: facts, causes, exact errors, values, decisions.",
    "work": "What is done; what is begun; what is still to do, in order; what blocks it.",
    "files": "One line for each file or page that matters further on: its exact name, a colon, and why it matters.",
}


def instruction(*, words: int, names: Sequence[str], merge: bool, tail: bool) -> str:
    """The user message that asks for a summary.

    words: how long it may be; names: identifiers that it must name; merge: an earlier summary is part of what is summed
    up; tail: the latest messages stay as they are beside it.
    """
    headings = "\n\n".join(f"## {title}\n{_WANTED[section]}" for section, title in TITLES.items())
    rules = [
        f"Do not answer the conversation and call no tool: write the summary only, in at most {words:,} words.",
        "Keep all five headings as they are, even where there is nothing to say: then write (none).",
        "Write names, paths, numbers, commands and errors exactly as they occur; name nothing that does not occur.",
    ]
    if merge:
        rules.append(
            "An earlier summary is part of the conversation: carry over what still holds, let what is newer win, and "
            "move what was open and is done now."
        )
    if tail:
        rules.append(
            "The latest messages stay beside the summary: they need no retelling, only their place in the work."
        )
    if names:
        rules.append(f"Name each of these where it belongs: {', '.join(names)}")
    return (
        "This conversation is about to outgrow its window. Sum it up, so that you can go on from the summary alone. "
        f"Use these headings, in this order:\n\n{headings}\n\nRules:\n" + "\n".join(f"- {rule}" for rule in rules)
    )


def once_more(problems: Sequence[str]) -> str:
    """The user message that asks for a better one."""
    listed = "\n".join(f"- {problem}" for problem in problems)
    return f"This summary cannot be used yet:\n{listed}\nWrite it again, whole, under the same headings and rules."


def so_far(summary: str) -> str:
    """How a part of the conversation is sent that had to be summed up before the rest."""
    return f"Summary of the conversation up to here:\n\n{summary}"
