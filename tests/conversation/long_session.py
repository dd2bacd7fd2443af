"""An agent session as long as one likes, the same every time; as a program it runs until it is done or killed.

python -m tests.conversation.long_session HISTORY REQUESTS
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longturn.conversation.artifacts.place import artifacts_of
from longturn.conversation.compaction.sections import TITLES
from longturn.conversation.conversation import Conversation
from longturn.conversation.edits import Externalize
from longturn.conversation.entries import Entry, Said
from longturn.conversation.events import Answered
from longturn.conversation.history import History, Session
from longturn.conversation.models.contract import ModelRequest
from longturn.conversation.models.scripted import ScriptedModel
from longturn.conversation.parts import Part, Reasoning, Text, ToolCall, ToolResult
from longturn.conversation.policies.registry import context_policy
from longturn.conversation.tools.contract import Outcome, Tool, Toolbox
from longturn.conversation.turn import Agent
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from longturn.conversation.window import Window

WINDOW = Window(context=32_768, output=4_096)
WORDS = ("cache", "tier", "page", "policy", "drops", "when", "request", "needs", "disk", "room", "the", "of")
FILES = 40


def text(seed: str, size: int) -> str:
    """Words in lines, `size` characters of them, the same for the same seed."""
    chooser = random.Random(seed)
    words = [f"{chooser.choice(WORDS)}{chooser.randrange(1000)}" for _ in range(size // 6)]
    lines = [" ".join(words[at : at + 12]) for at in range(0, len(words), 12)]
    return "\n".join(lines)[:size]


def tools() -> Toolbox:
    async def read(given: Mapping[str, Any]) -> Outcome:
        # Every third version of a file is new, so that two of three re-reads find it unchanged.
        path, at = given["path"], given["at"]
        return Outcome(text(f"{path} {at // 60}", 24_000), resource=path)

    async def run(given: Mapping[str, Any]) -> Outcome:
        return Outcome(text(f"run {given['at']}", 8_000 + given["at"] * 131 % 60_000))

    schema = {"type": "object", "properties": {"path": {"type": "string"}, "at": {"type": "integer"}}}
    return Toolbox([Tool("read", "Reads a file.", schema, read), Tool("run", "Runs a command.", schema, run)])


def script(request: ModelRequest, number: int) -> Sequence[Part]:
    """Some calls, then an answer: decided by the request alone, so that a killed process does not matter."""
    last = request.messages[-1]
    if last["role"] == "user" and "Use these headings" in str(last["content"]):
        return [Text(summary(str(last["content"])))]
    digest = hashlib.sha256(json.dumps(request.messages[-3:], sort_keys=True).encode()).hexdigest()
    chooser = random.Random(digest)
    if last["role"] == "tool" and chooser.random() < 0.12:
        return [Text(f"Done with step {digest[:8]}. " + text(digest, 600))]
    at = sum(message["role"] == "tool" for message in request.messages) + int(digest[:4], 16)
    calls = [ToolCall(f"c{digest[:12]}_0", "read", json.dumps({"path": f"src/m{at % FILES}.py", "at": at % 180}))]
    if chooser.random() < 0.6:
        calls.append(ToolCall(f"c{digest[:12]}_1", "run", json.dumps({"at": at})))
    return [Reasoning(f"I look at {digest[:8]}."), Text("I look."), *calls]


def summary(wish: str) -> str:
    """A summary as it should be: all headings, and every name that it must have."""
    must = re.search(r"Name each of these where it belongs: (.*)", wish)
    return "\n\n".join(f"## {title}\n- {must[1] if must else 'going on'}" for title in TITLES.values())


def agent(history: History, session: Session, window: Window = WINDOW) -> Agent:
    # It counts otherwise than the estimate does: that must be found out.
    model = ScriptedModel(script, window, bytes_per_token=3.3)
    talk = Conversation(session, context_policy("longturn"), window, artifacts_of(history))
    box = tools()
    talk.offer("You are careful. " + text("system", 2_000), box.definitions)
    return Agent(talk, model, box, max_output=window.output)


async def go_on(agent: Agent, requests: int, *, tell: bool = False) -> int:
    """Turns until so many requests of turns were answered, those of earlier processes included."""
    done = sum(line.purpose == "turn" for line in agent.conversation.session.lines())
    resumed: str | None = None if agent.conversation.unanswered else f"Step {done}: keep rule R-{done} and go on."
    while done < requests:
        async for event in agent.turn(resumed):
            if isinstance(event, Answered):
                done += 1
                if tell:
                    print(done, agent.conversation.entries, agent.conversation.rendered.digest, flush=True)
        resumed = f"Step {done}: never forget rule R-{done} of plan_{done}.md, and go on."
    return done


def killed(path: Path, requests: int) -> dict[int, str]:
    """Run the session in a process of its own and kill it -9 after so many requests; digest of its view by entries."""
    command = [sys.executable, "-m", "tests.conversation.long_session", str(path), "1000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    seen: dict[int, str] = {}
    for line in process.stdout:
        done, entries, digest = line.split()
        seen[int(entries)] = digest
        if int(done) >= requests:
            process.kill()
    process.stdout.close()
    process.wait()
    return seen


@dataclass
class Checked:
    requests: int = 0
    epochs: int = 0
    tokens: int = 0
    largest: int = 0


def check(history: History, session: Session, seen: Mapping[int, str]) -> Checked:
    """All that must hold of a session, by its history alone. seen: digests that its processes have reported."""
    entries = session.entries()
    turns = [request for request in session.requests() if request.sent and request.line.purpose == "turn"]
    requests = {request.sent.entries: request for request in turns if request.sent}
    assert len(requests) == len(turns)
    artifacts, found = artifacts_of(history), Checked()
    view, before, epoch = fold([]), None, -1
    reported = dict(seen)
    for number, entry in enumerate(entries):
        assert entry.seq == number
        if (request := requests.get(number)) is not None:
            rendered = render(view)
            assert request.sent is not None
            assert request.sent.matches(rendered.data)
            assert view.epoch.number != epoch or before is None or rendered.extends(before)
            before, epoch = rendered, view.epoch.number
            found.requests += 1
            found.largest = max(found.largest, request.line.use.logical)
        view = fold([entry], onto=view)
        if (digest := reported.pop(number + 1, None)) is not None:
            assert render(view).digest == digest
        if isinstance(entry, Said):
            assert entry.message == view.messages[number]
            for part in entry.message.parts:
                found.tokens += len(getattr(part, "text", "")) // 4
            for edit in entry.born:
                if isinstance(edit, Externalize):
                    part = entry.message.parts[edit.part]
                    assert isinstance(part, ToolResult)
                    assert artifacts.get(edit.artifact).decode() == part.text
        else:
            assert entry.reason
    assert not reported
    assert all(epoch.reason for epoch in view.epochs)
    _check_pairs(entries)
    found.epochs = len(view.epochs)
    return found


def _check_pairs(entries: Sequence[Entry]) -> None:
    """Each call has one result, and that is what the tool gave, to the last byte."""
    calls: dict[str, ToolCall] = {}
    results: dict[str, str] = {}
    for entry in entries:
        for part in entry.message.parts if isinstance(entry, Said) else ():
            if isinstance(part, ToolCall):
                assert part.call not in calls
                calls[part.call] = part
            elif isinstance(part, ToolResult):
                assert part.call not in results
                results[part.call] = part.text
    assert calls.keys() == results.keys()
    box = tools()
    for call in calls.values():
        assert asyncio.run(box.run(call)).text == results[call.call]


def main(path: str, requests: int) -> None:
    with History.open(Path(path)) as history:
        sessions = history.sessions()
        session = history.session(sessions[0].id) if sessions else history.create("long", "scripted", "longturn")
        asyncio.run(go_on(agent(history, session), requests, tell=True))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
