"""Errors of the gateway's own, in the shape of the provider that the client believes to speak to."""

from __future__ import annotations

from aiohttp import web

from longturn.dialects import anthropic_errors, gemini_errors, openai_response
from longturn.errors import Refusal
from longturn.gateway.routes import Family

SHAPES = {"openai": openai_response, "anthropic": anthropic_errors, "gemini": gemini_errors}


def unreachable(family: Family, why: str) -> web.Response:
    """The upstream gave no answer. Official clients try again by themselves."""
    message = f"The gateway had no answer from its upstream: {why}"
    return _answer(family, Refusal(502, message, "upstream_unreachable", kind="server_error"))


def over_budget(family: Family, message: str) -> web.Response:
    """The key has spent what it may. Official clients are told not to try again."""
    refusal = Refusal(429, message, "insufficient_quota", kind="insufficient_quota")
    return _answer(family, refusal, {"x-should-retry": "false"})


def _answer(family: Family, refusal: Refusal, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(SHAPES[family].error_body(refusal), status=refusal.status, headers=headers)
