"""GET /openapi.json: every route with the body that it takes, out of the dialects' own models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import create_model
from pydantic.json_schema import models_json_schema

import longturn
from longturn.dialects import anthropic, gemini, openai, responses

Json = dict[str, Any]

BODIES = {
    ":generateContent": (gemini.GenerateRequest,),
    ":streamGenerateContent": (gemini.GenerateRequest,),
    ":countTokens": (gemini.GenerateRequest, gemini.CountRequest),
    "/cachedContents": (gemini.CachedContentRequest,),
    "/cachedContents/{id}": (gemini.CacheLife,),
    "/chat/completions": (openai.ChatRequest,),
    "/completions": (openai.CompletionRequest,),
    "/responses": (responses.ResponsesRequest,),
    "/responses/compact": (responses.ResponsesRequest,),
    "/responses/input_tokens": (responses.ResponsesRequest,),
    "/conversations": (responses.ConversationRequest,),
    "/conversations/{id}": (responses.ConversationRequest,),
    "/conversations/{id}/items": (responses.ConversationRequest,),
    "/messages": (anthropic.MessagesRequest,),
    "/messages/count_tokens": (anthropic.CountRequest,),
    "/tokenize": (openai.ChatRequest, openai.CompletionRequest),
    "/detokenize": (create_model("Detokenize", tokens=(list[int], ...)),),
}
"""The end of a path -> what its body may be; of two ends the first counts."""
RESPONSES = {
    "200": {"description": "The answer"},
    "default": {"description": "An error in the shape of the client's provider"},
}


def install(app: FastAPI, model: str) -> None:
    """Let `app` describe itself. model: the one that it serves."""

    def openapi() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, model)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI, model: str) -> Json:
    document = get_openapi(title=app.title, version=longturn.__version__, routes=app.routes)
    kinds = dict.fromkeys(kind for kinds in BODIES.values() for kind in kinds)
    schemas, definitions = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
    )
    document["components"] = {"schemas": definitions["$defs"]}
    for kind in definitions["$defs"].values():
        if "model" in kind.get("properties", ()):
            kind["properties"]["model"] = {"type": "string", "enum": [model]}
    document["paths"] = paths = dict(_one_by_one(document["paths"], model))
    for path, operations in paths.items():
        bodies = next((kinds for end, kinds in BODIES.items() if path.endswith(end)), ())
        content = {"application/json": {"schema": {"anyOf": [schemas[kind, "validation"] for kind in bodies]}}}
        for method, operation in operations.items():
            operation["responses"] = RESPONSES
            if bodies and method in ("post", "patch"):
                operation["requestBody"] = {"required": True, "content": content}
    return document


def _one_by_one(paths: Mapping[str, Json], model: str) -> Iterable[tuple[str, Json]]:
    """The paths, with each call of a model of Google's as a path of its own."""
    for path, operations in paths.items():
        if not path.endswith("/models/{call}"):
            yield path, operations
            continue
        operation = operations["post"]
        places = [parameter for parameter in operation["parameters"] if parameter["name"] != "call"]
        served = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": [model]}}
        for call in (end for end in BODIES if end.startswith(":")):
            id = operation["operationId"] + call.replace(":", "_")
            one = {**operation, "operationId": id, "parameters": [*places, served]}
            yield path.replace("{call}", f"{{model}}{call}"), {"post": one}
