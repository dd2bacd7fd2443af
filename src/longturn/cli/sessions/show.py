"""`longturn sessions show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longturn.cli.sessions.opening import HistoryOption, SessionArgument, opened

if TYPE_CHECKING:
    from rich.console import Console

    from longturn.conversation.entries import Entry
    from longturn.conversation.history import Session
    from longturn.conversation.parts import Part

LINES = 12


def show(
    session: SessionArgument,
    last: Annotated[int | None, typer.Option(min=1, help="Only so many of the newest entries.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Show long texts whole.")] = False,
    history: HistoryOption = None,
) -> None:
    """Show all that was said and edited, whether it is sent or not, and what it has cost."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    with opened(history) as kept:
        found = kept.session(session)
        entries = found.entries()
        _print_head(console, found)
    for entry in entries if last is None else entries[-last:]:
        _print_entry(console, entry, full)


def _print_head(console: Console, session: Session) -> None:
    from rich.markup import escape

    from longturn.ledger import Spent

    info, spent = session.info, Spent()
    console.print(f"[bold]{escape(info.title or 'no title')}[/]  {info.id}")
    names = [f"model {info.model}" if info.model else "", f"policy {info.policy}" if info.policy else ""]
    names.append(f"branch of {info.parent} at {info.fork}" if info.parent else "")
    if told := ", ".join(filter(None, names)):
        console.print(escape(told), style="dim")
    for line in session.lines():
        spent.add(line)
    use = spent.use
    console.print(
        f"spent in {spent.requests:,} requests: {use.logical:,} tokens = {use.cached_total:,} cached + "
        f"{use.computed:,} computed; {use.output:,} output",
        style="dim",
    )


def _print_entry(console: Console, entry: Entry, full: bool) -> None:
    from rich.markup import escape

    from longturn.conversation.entries import Edited

    if isinstance(entry, Edited):
        edits = ", ".join(str(edit.__struct_config__.tag) for edit in entry.edits) or "no edits"
        undone = ", undone since" if entry.undone else ""
        console.print(f"\n[yellow]{entry.seq}  edited: {escape(edits)} ({escape(entry.reason)}){undone}[/]")
        return
    born = ", ".join(str(edit.__struct_config__.tag) for edit in entry.born)
    note = f"  (born with {born})" if born else ""
    console.print(f"\n[bold cyan]{entry.seq}  {entry.message.role}[/]{escape(note)}")
    for part in entry.message.parts:
        console.print(escape(told(part, full)))


def told(part: Part, full: bool) -> str:
    """A part, for people."""
    import msgspec

    from longturn.conversation.parts import File, Reasoning, Signal, Summary, Text, ToolCall, ToolResult, Tools, Unknown

    match part:
        case Text(text=text):
            return _cut(text, full)
        case Reasoning(text=text):
            return f"[reasoning] {_cut(text, full)}"
        case ToolCall(tool=tool, arguments=arguments):
            return f"[call] {tool}{_cut(arguments, full)}"
        case ToolResult(text=text, resource=resource, error=error):
            of = f" of {resource}" if resource else ""
            return f"[{'error' if error else 'result'}{of}] {_cut(text, full)}"
        case File(name=name, media_type=media_type, size=size):
            return f"[file] {name}, {media_type}, {size:,} bytes"
        case Summary(text=text, first=first, last=last):
            return f"[summary of {first} to {last}] {_cut(text, full)}"
        case Tools(definitions=definitions):
            names = (definition.get("function", definition) for definition in definitions)
            return f"[tools] {', '.join(str(name.get('name')) for name in names)}"
        case Signal(hint=hint):
            return f"[hint] {hint}"
        case Unknown(data=data):
            return f"[unknown part] {_cut(msgspec.json.encode(data).decode(), full)}"


def _cut(text: str, full: bool) -> str:
    lines = text.splitlines()
    if full or len(lines) <= LINES + 1:
        return text
    return "\n".join([*lines[:LINES], f"[{len(lines) - LINES:,} more lines: --full shows them]"])
