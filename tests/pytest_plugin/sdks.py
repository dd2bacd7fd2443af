"""The three SDKs as they are, with one way to call them: a system prompt, alternating turns and names of tools."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.conversation.models.replies import SSE, Reply

OBJECT = {"type": "object"}
WHOLE, STREAM = Reply("{}"), Reply("\n", kind=SSE)
"""Answers that all of them accept."""


def chat(client: Any, system: str, turns: Sequence[str], tools: Sequence[str], stream: bool) -> Any:
    functions = [{"type": "function", "function": {"name": name, "parameters": OBJECT}} for name in tools]
    messages = [{"role": "system", "content": system}, *said(turns)]
    return client.chat.completions.create(model="gpt-4.1", messages=messages, tools=functions, stream=stream)


def responses(client: Any, system: str, turns: Sequence[str], tools: Sequence[str], stream: bool) -> Any:
    functions = [{"type": "function", "name": name, "parameters": OBJECT, "strict": False} for name in tools]
    return client.responses.create(
        model="gpt-5.2", instructions=system, input=said(turns), tools=functions, stream=stream
    )


def messages(client: Any, system: str, turns: Sequence[str], tools: Sequence[str], stream: bool) -> Any:
    mark = {"cache_control": {"type": "ephemeral"}}
    asked = said(turns)
    asked[-1]["content"] = [{"type": "text", "text": turns[-1], **mark}]
    return client.messages.create(
        model="claude-opus-5",
        max_tokens=64,
        system=[{"type": "text", "text": system, **mark}],
        messages=asked,
        tools=[{"name": name, "input_schema": OBJECT} for name in tools],
        stream=stream,
    )


def gemini(client: Any, system: str, turns: Sequence[str], tools: Sequence[str], stream: bool) -> Any:
    declared = [{"name": name, "parameters_json_schema": OBJECT} for name in tools]
    contents = [
        {"role": "model" if turn["role"] == "assistant" else "user", "parts": [{"text": turn["content"]}]}
        for turn in said(turns)
    ]
    call = client.models.generate_content_stream if stream else client.models.generate_content
    config = {"system_instruction": system, "tools": [{"function_declarations": declared}]}
    return call(model="gemini-2.5-flash", contents=contents, config=config)


CALLS = {"openai-chat": chat, "openai": responses, "anthropic": messages, "gemini": gemini}


def said(turns: Sequence[str]) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": words} for i, words in enumerate(turns)]


def client_of(provider: str, url: str, *, in_loop: bool) -> Any:
    if provider == "gemini":
        from google import genai

        client = genai.Client(api_key="x", http_options=genai.types.HttpOptions(base_url=url))
        return client.aio if in_loop else client
    if provider == "anthropic":
        import anthropic

        return (anthropic.AsyncAnthropic if in_loop else anthropic.Anthropic)(api_key="x", base_url=url)
    import openai

    return (openai.AsyncOpenAI if in_loop else openai.OpenAI)(api_key="x", base_url=f"{url}/v1")


def ask(
    provider: str,
    url: str,
    system: str,
    turns: Sequence[str],
    tools: Sequence[str] = ("read", "search", "write"),
    *,
    in_loop: bool = False,
    stream: bool = False,
) -> None:
    """One request to the server at `url`; its answer is read to the end."""
    call = CALLS[provider]
    if in_loop:
        asyncio.run(_ask_in_loop(provider, url, system, turns, tools, stream))
        return
    # Gemini's client must stay referenced until the answer has been read.
    client = client_of(provider, url, in_loop=False)
    answer = call(client, system, turns, tools, stream)
    if stream:
        list(answer)


async def _ask_in_loop(
    provider: str, url: str, system: str, turns: Sequence[str], tools: Sequence[str], stream: bool
) -> None:
    client = client_of(provider, url, in_loop=True)
    answer = await CALLS[provider](client, system, turns, tools, stream)
    if stream:
        async for _ in answer:
            pass
