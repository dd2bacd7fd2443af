"""The application over one engine: the APIs of OpenAI, Anthropic and Google."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from longturn.serve import errors, models, openapi, status, tokenizing
from longturn.serve.anthropic import messages
from longturn.serve.caching.gemini import CachedContents
from longturn.serve.caching.openai import OpenAICache
from longturn.serve.encoding import Encoding
from longturn.serve.front import Front
from longturn.serve.gemini import cached_contents, generate
from longturn.serve.keys import Keys
from longturn.serve.metrics import Metrics
from longturn.serve.openai import chat, completions, conversations, responses
from longturn.serve.openai.stored import StoredResponses

if TYPE_CHECKING:
    from longturn.engine import EngineService

BODY_LIMIT = 64 << 20


def create_app(service: EngineService, keys: Keys | None = None, *, body_limit: int = BODY_LIMIT) -> FastAPI:
    """Make the application that serves `service`. The caller closes the service when the server has stopped.

    keys: who may ask (default: everybody); body_limit: bytes of the largest request.
    """
    # No pages of documentation: they load scripts from elsewhere.
    app = FastAPI(title="Longturn", docs_url=None, redoc_url=None)
    app.state.front = Front(
        service, Encoding(service.tokenizer, service.model), keys or Keys(), Metrics(service), body_limit
    )
    app.state.stored = StoredResponses()
    app.state.openai_cache = OpenAICache()
    app.state.cached_contents = CachedContents()
    app.state.anthropic_cache = messages.AnthropicCache()
    errors.install(app)
    for module in (
        cached_contents,
        chat,
        completions,
        conversations,
        generate,
        messages,
        models,
        responses,
        status,
        tokenizing,
    ):
        app.include_router(module.router)
    openapi.install(app, service.model.name)
    return app
