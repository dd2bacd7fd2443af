"""What engines' threads post reaches the event loop, all of it and in order."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from longturn.engine.request import Output
from longturn.serve.bridge import Answers

EACH, THREADS = 2000, 4


def test_nothing_is_lost_between_several_threads() -> None:
    service: Any = None  # asked for nothing here
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    async def received() -> list[tuple[int, Output]]:
        answers = Answers(service)
        posts = [answers._deliver(number) for number in range(THREADS)]

        def post(number: int) -> None:
            for at in range(EACH):
                posts[number](Output("r", str(at), ()))

        with ThreadPoolExecutor(THREADS) as threads:
            done = [asyncio.get_running_loop().run_in_executor(threads, post, number) for number in range(THREADS)]
            async with asyncio.timeout(60):
                found = [await answers.next() for _ in range(EACH * THREADS)]
                await asyncio.gather(*done)
        return found

    try:
        found = asyncio.run(received())
    finally:
        sys.setswitchinterval(interval)
    for number in range(THREADS):
        assert [int(output.text) for index, output in found if index == number] == list(range(EACH))
