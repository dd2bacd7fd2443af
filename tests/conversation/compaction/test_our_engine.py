"""Compaction on our own engine: the request for a summary computes little more than itself."""

from __future__ import annotations

from pathlib import Path

from longturn.conversation.compaction.compact import compact
from longturn.conversation.compaction.sections import read_sections
from longturn.conversation.edits.contract import NeedsSummary
from longturn.conversation.models.contract import ModelRequest, answer_of
from longturn.conversation.models.openai_chat import OpenAIChat
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from longturn.conversation.window import Window
from longturn.engine import EngineOptions, EngineService
from longturn.serve import create_app, in_background
from tests.conversation.talk import Talk
from tests.tiny_model import build_tiny_model


async def test_a_summary_is_asked_for_behind_a_cached_prefix(tmp_path: Path) -> None:
    made = Talk(system="You help with code. " * 20)
    made.user("Fix src/parser.py, issue #482. Never touch vendor/.")
    made.read("src/parser.py", "def parse(text):\n    return text.split()\n" * 12)
    made.assistant("It splits quoted strings too.")
    made.user("Go on.")
    window = Window(8_000, 48)
    options = EngineOptions(
        model=str(build_tiny_model(tmp_path, context=8192)),
        served_name="tiny",
        dtype="float32",
        device_tokens=12_000,
        threads=1,
    )
    service = EngineService.start(options)
    try:
        with in_background(create_app(service), service) as url:
            model = OpenAIChat("tiny", url)
            sent = render(fold(made.entries))
            like = ModelRequest(sent.messages, sent.tools, max_output=16, temperature=0, session="s")
            first = await answer_of(model, like)
            made.assistant("Now it does not.")
            view = fold(made.entries)
            done = await compact(
                view, NeedsSummary(1, 4, 5, "full"), lambda request: answer_of(model, request), window, like
            )
            made.edit(done.edit)
            after = render(fold(made.entries))
            answer = await answer_of(model, ModelRequest(after.messages, after.tools, max_output=4, session="s"))
            await model.close()
    finally:
        service.close()
    assert first.use is not None
    # A model of random weights writes no summary: it is asked twice, and what is known without it is there.
    asked, again = done.answers
    assert asked.use is not None
    assert again.use is not None
    assert asked.use.cached_total >= 0.95 * first.use.logical
    assert again.use.cached_total >= 0.95 * asked.use.logical
    assert done.problems
    sections = read_sections(done.edit.text)
    assert sections["constraints"] == '- "Never touch vendor/." (message 1)'
    assert sections["files"].startswith("- src/parser.py [read; message 3]")
    assert "#482" in done.edit.text
    assert answer.use is not None
    assert answer.use.cached_total > 0  # system text and tools are still those that were sent
