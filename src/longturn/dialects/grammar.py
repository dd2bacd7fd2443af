"""What an answer must look like, as a pure description; the engine masks every token that does not fit.

    json_object(param)                          any JSON object
    json_schema(schema, param)                  JSON that a schema accepts
    regex(pattern, param)                       text that a regular expression matches as a whole
    choice(options, param)                      one of several texts
    grammar(text, param)                        a context-free grammar, in Lark or in llama.cpp's GBNF
    tool_calls(tools, param)                    calls of tools, and nothing else
    answer_or_tool_calls(answer, tools, param)  such calls, or what another grammar asks for
    text_with_tool_calls(tools, param)          free text, and calls in it

Each takes the field of the client's request that asked for it, so that an error can name it. What cannot be compiled is
refused by the engine, as a RequestError, before the request is queued. Calls are in a form that `ToolCallParser` reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from longturn.dialects.dates import on_the_calendar
from longturn.dialects.tool_calls import CLOSE, OPEN
from longturn.errors import RequestError

Kind = Literal["json_schema", "regex", "lark", "gbnf"]
CallForm = Literal["tagged", "bare"]
Schema = Mapping[str, Any] | bool
# Longer runs of white space are no layout: a model that cannot decide would go on with them until max_tokens.
WHITE_SPACE = r"[ \t\n]{0,40}"
# Characters. Longer chains of rules or references than fit here take minutes, or more stack than the engine has.
MAX_SCHEMA = 200_000
MAX_LARK = 50_000
# It is translated to Lark, which takes time with the square of its rules.
MAX_GBNF = 20_000
_LARK = re.compile(r"\s*(%llguidance\b|start\s*(\[|:(?!:=)))")


@dataclass(frozen=True)
class Grammar:
    """A set of texts, one of which the answer must be.

    source: a JSON schema as JSON, a regular expression of Rust's `regex`, or a grammar in llguidance's Lark or in GBNF.
    param: the field of the request that asked for it; grammars that differ in nothing else are the same.
    """

    kind: Kind
    source: str
    param: str = field(compare=False)


@dataclass(frozen=True)
class ToolSchema:
    """A tool that may be called. parameters: the JSON schema of its arguments, None if it takes none.

    strict: a keyword of the schema that cannot be enforced is an error; otherwise it is passed over.
    """

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


def json_object(param: str) -> Grammar:
    """Any JSON object."""
    return json_schema({"type": "object"}, param)


def json_schema(schema: Schema, param: str, *, strict: bool = True) -> Grammar:
    """JSON that `schema` accepts, properties in the order of the schema. strict: see `ToolSchema`."""
    return Grammar("json_schema", _json(schema, param, strict), param)


def regex(pattern: str, param: str) -> Grammar:
    """Text that `pattern` matches from beginning to end."""
    return Grammar("regex", pattern, param)


def choice(options: Sequence[str], param: str) -> Grammar:
    """One of `options`. Raises RequestError if there are none, or an empty one."""
    if not options or not all(options):
        raise RequestError(f"{param} must be a list of texts, none of them empty.", param=param)
    return Grammar("lark", "start: " + " | ".join(_literal(option) for option in options), param)


def grammar(text: str, param: str) -> Grammar:
    """Text that a context-free grammar derives: in Lark from its rule `start`, in GBNF from its rule `root`.

    Raises RequestError for GBNF of more than `MAX_GBNF` characters, or Lark of more than `MAX_LARK`.
    """
    kind: Kind = "lark" if any(_LARK.match(line) for line in text.splitlines()) else "gbnf"
    return Grammar(kind, _short(text, MAX_GBNF if kind == "gbnf" else MAX_LARK, param), param)


def tool_calls(tools: Sequence[ToolSchema], param: str, *, form: CallForm = "tagged", several: bool = True) -> Grammar:
    """One call of one of `tools`, or several. form: how the model writes them, see `tool_calls.ToolCallParser`.

    Raises RequestError for parameters that are no object.
    """
    return _lark(["start: calls", *_calls(tools, param, form, several)], param)


def answer_or_tool_calls(
    answer: Grammar, tools: Sequence[ToolSchema], param: str, *, form: CallForm = "tagged", several: bool = True
) -> Grammar:
    """What `answer` asks for, or calls as of `tool_calls`. Only an answer in JSON leaves room for calls."""
    if answer.kind != "json_schema":
        return answer
    return _lark(
        ["start: answer | calls", f"answer: %json {answer.source}", *_calls(tools, param, form, several)], answer.param
    )


def text_with_tool_calls(tools: Sequence[ToolSchema], param: str) -> Grammar:
    """Any text; but where it calls a tool (in the tagged form), it is one of `tools` with arguments that fit."""
    rules = _calls(tools, param, "tagged", several=False, opened=True)
    return _lark(
        ["start: (begin call)* TEXT", f"begin[lazy]: TEXT {_literal(OPEN)}", r"TEXT: /(.|\n)*/", *rules], param
    )


def _calls(
    tools: Sequence[ToolSchema], param: str, form: CallForm, several: bool, *, opened: bool = False
) -> list[str]:
    """The rules `calls` and `call`; opened: the tag before a call is not part of it."""
    start, arguments, end, between = {
        "tagged": ("\n" if opened else f"{OPEN}\n", "arguments", f"}}\n{CLOSE}", "\n"),
        "bare": ("", "parameters", "}", "; "),
    }[form]
    rules = [f"calls: call ({_literal(between)} call)*"] if several else ["calls: call"]
    rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
    for number, tool in enumerate(tools):
        head = f'{start}{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments}": '
        rules.append(f"call_{number}: {_literal(head)} arguments_{number} {_literal(end)}")
        rules.append(f"arguments_{number}: %json {_json(_arguments(tool, param), param, tool.strict)}")
    return rules


def _arguments(tool: ToolSchema, param: str) -> Mapping[str, Any]:
    if tool.parameters is None:
        return {"type": "object", "additionalProperties": False}
    schema = {"type": "object", **tool.parameters}
    if schema["type"] != "object":
        raise RequestError(f'The parameters of {tool.name!r} must be a schema of type "object".', param=param)
    return schema


def _json(schema: Schema, param: str, strict: bool) -> str:
    try:
        _short(json.dumps(schema, ensure_ascii=False), MAX_SCHEMA, param)
        made = on_the_calendar(schema)
        if not isinstance(made, bool):
            made["x-guidance"] = {"whitespace_pattern": WHITE_SPACE, "lenient": not strict}
        return json.dumps(made, ensure_ascii=False)
    except RecursionError:
        raise RequestError(f"{param} is nested too deeply: simplify the schema.", param=param) from None


def _short(text: str, most: int, param: str) -> str:
    if len(text) > most:
        raise RequestError(f"{param} has {len(text)} characters, at most {most} are taken: simplify it.", param=param)
    return text


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _lark(rules: Sequence[str], param: str) -> Grammar:
    return Grammar("lark", "\n".join(rules), param)
