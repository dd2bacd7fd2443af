"""Two processes that write to one session, one of which is killed in the middle."""

from __future__ import annotations

import random
import subprocess
import sys
import time

from longturn.conversation.entries import Said
from longturn.conversation.history import History

WRITER = """
import itertools, sys
from longturn.conversation.history import History, Sent
from longturn.conversation.parts import Message, Text
from longturn.errors import SessionChanged
from longturn.ledger import RequestLine, TokenUse

place, session, name = sys.argv[1:]
session = History.open(place).session(session)
print("ready", flush=True)
for n in itertools.count():
    message = Message(f"{name}-{n}", "user", (Text(f"{name}-{n} " * 200),))
    line = RequestLine(f"{name}-{n}", None, "m", 1.0, TokenUse(logical=n, cached={}, computed=n))
    while True:
        try:
            said = session.append(message, line=line, sent=Sent.of(n, b""))
            break
        except SessionChanged:
            session.entries()
    print(said.seq, message.id, flush=True)
"""


def kill_one_of_two(place: str, rounds: int) -> int:
    """Nothing that was acknowledged may be missing, or be there twice, after a round. Returns how much was written."""
    with History.open(place) as history:
        session = history.create()
        acknowledged: dict[int, str] = {}
        for number in range(rounds):
            command = [sys.executable, "-c", WRITER, place, session.id]
            victim, other = (
                subprocess.Popen([*command, f"{name}{number}"], stdout=subprocess.PIPE, text=True) for name in "vo"
            )
            assert victim.stdout is not None
            assert other.stdout is not None
            assert (victim.stdout.readline(), other.stdout.readline()) == ("ready\n", "ready\n")
            time.sleep(random.uniform(0.02, 0.3))
            victim.kill()
            said = victim.stdout.read().splitlines(keepends=True)
            lines = [line for line in said if line.endswith("\n")]
            # The survivor goes on at once, over whatever the victim left half done.
            lines += [other.stdout.readline() for _ in range(len(lines) + 3)]
            other.kill()
            lines += [line for line in other.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            for process in (victim, other):
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
            for seq, name in (line.split() for line in lines):
                assert int(seq) not in acknowledged
                acknowledged[int(seq)] = name
            entries = session.entries()
            kept = {entry.seq: entry.message.id for entry in entries if isinstance(entry, Said)}
            assert acknowledged.items() <= kept.items()
            assert list(kept) == list(range(len(kept)))
            assert len(set(kept.values())) == len(kept)
            assert [request.line.request_id for request in session.requests()] == list(kept.values())
        return len(kept)
