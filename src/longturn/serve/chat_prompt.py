"""From messages and tools to the text of a prompt, through the model's own chat template.

A template that knows no tools would drop them in silence, and calls and results of earlier turns with them. For such a
model they are written into the messages, in the form of Hermes and Qwen, which is the one that most models have seen.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from longturn.dialects.grammar import CallForm
from longturn.dialects.talk import Talk
from longturn.dialects.tool_calls import OPEN
from longturn.errors import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Json = dict[str, Any]

TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def chat_text(tokenizer: PreTrainedTokenizerBase, talk: Talk) -> str:
    """The prompt of a chat, special tokens included. Raises RequestError for messages that the template refuses."""
    if tokenizer.chat_template is None:
        raise RequestError("This model has no chat template: use /v1/completions.", param="model")
    messages, tools, options = talk.messages, talk.tools, talk.options
    if not messages:
        raise RequestError("There is nothing to answer: send at least one message with a text.", param="messages")
    if taken := sorted(options.keys() & inspect.signature(tokenizer.apply_chat_template).parameters.keys()):
        raise RequestError(f"{taken[0]} cannot be set: it is the server's own.", param="chat_template_kwargs")
    if not _knows_tools(tokenizer.get_chat_template(tools=tools)):
        messages, tools = _with_tools_as_text(messages, tools), None
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=[*tools] if tools else None, add_generation_prompt=True, tokenize=False, **options
        )
    except TemplateError as error:
        raise RequestError(f"The model's chat template refuses these messages: {error}.", param="messages") from None
    return f"{text}{talk.begun}"


def call_form(tokenizer: PreTrainedTokenizerBase) -> CallForm:
    """How the model has been shown to write calls of tools."""
    template = tokenizer.get_chat_template(tools=[{}])
    return "bare" if _knows_tools(template) and OPEN not in template else "tagged"


def _knows_tools(template: str) -> bool:
    return "tools" in template


def _with_tools_as_text(messages: Sequence[Json], tools: Sequence[Json] | None) -> list[Json]:
    """The same conversation in the roles system, user and assistant alone, without fields for tools."""
    plain: list[Json] = []
    previous = None
    for message in messages:
        role, text = message["role"], message["content"]
        if role == "tool":
            result = f"<tool_response>\n{text}\n</tool_response>"
            if previous == "tool":
                plain[-1]["content"] += f"\n{result}"
            else:
                plain.append({"role": "user", "content": result})
        else:
            calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
            plain.append({"role": role, "content": "\n".join([text, *calls] if text else calls)})
        previous = role
    if tools:
        shown = TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if plain and plain[0]["role"] == "system":
            plain[0]["content"] += f"\n\n{shown}"
        else:
            plain.insert(0, {"role": "system", "content": shown})
    return plain


def _call(function: Json) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
