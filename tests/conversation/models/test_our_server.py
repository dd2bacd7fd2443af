"""Our own server, with a real engine, as one more server of OpenAI's kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from longturn.conversation.models.contract import Answer, Delta, ModelRequest, answer_of
from longturn.conversation.models.openai_chat import OpenAIChat
from longturn.conversation.parts import Text
from longturn.conversation.window import Window
from longturn.engine import EngineOptions, EngineService
from longturn.errors import ContextOverflow
from longturn.serve import create_app, in_background
from tests.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = build_tiny_model(tmp_path_factory.mktemp("tiny"))
    options = EngineOptions(model=str(folder), served_name="tiny", dtype="float32", device_tokens=8192, threads=1)
    service = EngineService.start(options)
    try:
        with in_background(create_app(service), service) as url:
            yield url
    finally:
        service.close()


async def test_a_conversation_keeps_its_prefix(url: str):
    model = OpenAIChat("tiny", url)
    said = [{"role": "user", "content": "Hello there"}]
    first = await answer_of(model, ModelRequest(said, max_output=8, temperature=0, session="s"))
    assert first.use is not None
    assert first.use.cached_total == 0
    text = "".join(part.text for part in first.parts if isinstance(part, Text))
    said += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on"}]
    pieces = [piece async for piece in model.stream(ModelRequest(said, max_output=8, temperature=0, session="s"))]
    second = pieces[-1]
    assert isinstance(second, Answer)
    assert second.use is not None
    assert second.use.cached.get("device", 0) > 0
    assert second.use.logical > first.use.logical
    assert "".join(piece.text for piece in pieces if isinstance(piece, Delta)) == "".join(
        part.text for part in second.parts if isinstance(part, Text)
    )
    assert second.raw_usage is not None
    assert second.raw_usage["longturn"]["session"] == "s"
    await model.close()


async def test_its_window_and_what_is_over_it(url: str):
    model = OpenAIChat("tiny", url)
    window = await model.window()
    assert isinstance(window, Window)
    with pytest.raises(ContextOverflow):
        await answer_of(model, ModelRequest([{"role": "user", "content": "word " * window.context}], max_output=8))
    await model.close()
