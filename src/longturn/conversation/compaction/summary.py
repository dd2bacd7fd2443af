"""The summary that is sent: what a model wrote, checked, beside what is known without it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from longturn.conversation.compaction.constraints import constraints, user_texts
from longturn.conversation.compaction.files import Touched, touched
from longturn.conversation.compaction.identifiers import identifiers, invented, vanished
from longturn.conversation.compaction.sections import TITLES, Section, read_sections, write_sections
from longturn.conversation.edits.contract import NeedsSummary
from longturn.conversation.item import Place
from longturn.conversation.parts import Message, Reasoning, Text, ToolCall, ToolResult
from longturn.conversation.view.fold import View

_MUST = 20
_FILES = 30
_NAMES = 30
_LEAST_NAMES = 400
_ASKED = 300
_ADDED = re.compile(r"\s*\[[^\[\]]*; message \d+\]\s*$")


@dataclass(frozen=True)
class Known:
    """What is known of the range without a model.

    names: identifiers that the user wrote in the range, the newest first, which a summary must not lose; frequent:
    further ones, of several messages; files: the latest first; earlier: text of the summaries in the range; text:
    everything that a summary may speak of.
    """

    messages: Mapping[int, Message]
    need: NeedsSummary
    names: tuple[str, ...]
    frequent: tuple[str, ...]
    files: tuple[Touched, ...]
    earlier: tuple[str, ...]
    text: str


def known(view: View, need: NeedsSummary) -> Known:
    """All that `need` asks to be summed up, as far as it is known. What goes before the range is known too."""
    # What was summed up before is only sent as its summary: its names had to be in there then.
    numbers = {item.message for item in view.items if need.first <= item.message <= need.last and item.part >= 0}
    inside = {seq: view.messages[seq] for seq in sorted(numbers)}
    names = identifiers("\n".join(user_texts(inside, need.last)))[::-1]
    counts = Counter(name for message in inside.values() for name in set(identifiers(_words(message))))
    files = touched(view.messages, need.last)
    listed = {entry.name for entry in files} | set(names)
    frequent = [name for name, count in counts.most_common() if count > 1 and name not in listed]
    return Known(
        view.messages,
        need,
        tuple(names[:_MUST]),
        tuple(sorted(frequent[:_NAMES], key=lambda name: (-counts[name], name))),
        tuple(files),
        tuple(text for place, text in view.texts.items() if _is_summary(place, need) and place in view.places),
        "\n".join([*map(_words, view.messages.values()), *view.texts.values()]),
    )


def problems(text: str, about: Known, *, cut: bool) -> list[str]:
    """What is wrong with a model's summary, in words for the model; empty for a good one. cut: by the output limit."""
    if not text.strip():
        return ["The summary has no text. Answer with it as plain text; call no tool."]
    found = read_sections(text)
    wrong = ["The summary was cut off: be much shorter."] if cut else []
    if missing := [title for section, title in TITLES.items() if section not in found]:
        wrong.append(f"These headings, or what belongs under them, are missing: {', '.join(missing)}.")
    if lost := vanished(about.names, text):
        wrong.append(f"These names are missing: {', '.join(lost)}.")
    if made_up := invented(text, about.text):
        wrong.append(f"These names do not occur in the conversation: {', '.join(made_up[:_MUST])}.")
    return wrong


def compose(text: str, about: Known, *, room: int, recall: bool) -> str:
    """The summary to send. text: the model's, perhaps of poor form or empty; room: characters for the model's words,
    and half as many again for what is known without it; recall: whether the model can look up the original."""
    found = _said(text)
    if not found and text.strip():
        found = {"work": text.strip()}
    pointed = [sections.get("constraints", "") for sections in (*map(_said, about.earlier), found)]
    quotes, left_out = constraints(about.messages, about.need.last, "\n".join(pointed).splitlines(), room // 4)
    budget = room
    bodies: dict[Section, str] = {}
    for section in ("goal", "work", "discoveries"):
        body, budget = _within(found.get(section, ""), budget)
        bodies[section] = body
    if not bodies["goal"]:
        bodies["goal"] = _first_words(about)
    demands = [f'- "{quote.text}" (message {quote.seq})' for quote in quotes]
    bodies["constraints"] = "\n".join([f"- and {left_out} earlier ones", *demands] if left_out else demands)
    bodies["files"] = _files(found.get("files", ""), about, room // 4, "\n".join(bodies.values()))
    return f"{_header(about.need, recall)}\n\n{write_sections(bodies)}"


def _header(need: NeedsSummary, recall: bool) -> str:
    way = ": `recall` finds words in them and reads them whole" if recall else ""
    return f"[Summary of messages {need.first} to {need.last} of this conversation, which are kept{way}]"


def _files(written: str, about: Known, room: int, rest: str) -> str:
    """Files that were really touched, with what the model said of them; then names that are said nowhere else."""
    notes = _notes(written, about)
    lines: list[str] = []
    for entry in sorted(about.files, key=lambda entry: (entry.name not in notes, -entry.last))[:_FILES]:
        uses = ", ".join(tool if count == 1 else f"{tool} {count} times" for tool, count in entry.tools.most_common())
        why = notes.get(entry.name, "")
        line = f"- {entry.name}{': ' if why else ''}{why} [{uses}; message {entry.last}]"
        room -= len(line)
        if room < 0:
            break
        lines.append(line)
    if left := len(about.files) - len(lines):
        lines.append(f"- and {left} more")
    said = rest + "\n".join(lines)
    names = [name for name in (*vanished(about.names, said), *about.frequent) if name not in said][:_NAMES]
    while names and sum(map(len, names)) > max(room, _LEAST_NAMES):
        names.pop()
    if names:
        lines.append(f"Other names: {', '.join(names)}")
    return "\n".join(lines)


def _notes(written: str, about: Known) -> dict[str, str]:
    """What a model said of each file, less what earlier summaries had added to it."""
    lines = [_ADDED.sub("", line.lstrip("-*• ").replace("`", "")) for line in written.splitlines()]
    notes: dict[str, str] = {}
    # The longest name first: a note on `a/b.py` is none on `b.py`.
    for entry in sorted(about.files, key=lambda entry: -len(entry.name)):
        for name in (entry.name, entry.name.rpartition("/")[2] + ":"):
            line = next((line for line in lines if name in line), None)
            if line is not None:
                lines.remove(line)
                notes[entry.name] = line[line.index(name) + len(name) :].lstrip(" :–—-")  # noqa: RUF001
                break
    return notes


def _said(text: str) -> dict[Section, str]:
    """The sections in which something is said."""
    return {section: body for section, body in read_sections(text).items() if body.strip("() .-*") != "none"}


def _first_words(about: Known) -> str:
    """The user's, where a model says nothing of the goal."""
    said = user_texts(about.messages, about.need.last)
    asked = [f'First: "{said[0][:_ASKED]}"', f'Latest: "{said[-1][:_ASKED]}"'] if said else []
    return "\n".join(asked[: len(set(said))])


def _within(body: str, room: int) -> tuple[str, int]:
    """As much of a body as there is room for, at a whole line where one ends near."""
    if len(body) <= room:
        return body, room - len(body)
    cut = body[: max(room, 0)]
    if (end := cut.rfind("\n")) > len(cut) // 2:
        cut = cut[:end]
    return (f"{cut}\n[cut]" if cut else ""), 0


def _is_summary(place: Place, need: NeedsSummary) -> bool:
    return place[1] == -1 and need.first <= place[0] <= need.last


def _words(message: Message) -> str:
    """All that was said in a message, by whomever."""
    texts: list[str] = []
    for part in message.parts:
        match part:
            case Text(text=text) | Reasoning(text=text):
                texts.append(text)
            case ToolResult(text=text, resource=resource):
                texts.append(f"{resource or ''} {text}")
            case ToolCall(tool=tool, arguments=arguments):
                texts.append(f"{tool} {arguments}")
            case _:
                texts.append(str(getattr(part, "name", "")))
    return "\n".join(texts)
