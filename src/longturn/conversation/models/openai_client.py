"""OpenAI's SDK as both of its APIs use it here: one client, one mapping of errors, the limits of what is served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
from openai import AsyncOpenAI

from longturn.conversation.models.failures import failure, said_by, unreachable
from longturn.conversation.models.limits import known_window, limited
from longturn.conversation.window import Window
from longturn.errors import ProviderError

# A long prompt may be computed for minutes before the first token.
TIMEOUT = httpx2.Timeout(10, read=600)
# OpenAI keeps prefixes for half an hour at least, and older models' mostly for an hour at most.
CACHE_SECONDS = 3600.0
# How servers of OpenAI's kind call the context in their list of models: vLLM and ours, OpenRouter and LM Studio, Groq,
# Mistral.
CONTEXT_NAMES = ("max_model_len", "context_length", "context_window", "max_context_length")


def client(url: str | None, api_key: str | None, timeout: httpx2.Timeout) -> AsyncOpenAI:
    """A client for `url`, where a final /v1 may be left out; None is OpenAI itself, with its key in the environment.

    Raises ProviderError where there is no key.
    """
    if url is None:
        try:
            return AsyncOpenAI(api_key=api_key, timeout=timeout, max_retries=0)
        except openai.OpenAIError as error:
            raise ProviderError(f"OpenAI needs a key: set OPENAI_API_KEY ({error})") from error
    parts = urlsplit(url)
    base = url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/v1"
    # A server without keys takes any, but the SDK insists on one. A proxy from the environment cannot reach this
    # machine's own addresses.
    http = openai.DefaultAsyncHttpxClient(trust_env=not is_local(url), timeout=timeout)
    return AsyncOpenAI(api_key=api_key or "none", base_url=base, timeout=timeout, max_retries=0, http_client=http)


def is_local(url: str) -> bool:
    """Whether a URL names this machine."""
    return urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")


@contextmanager
def as_provider_errors(url: str) -> Iterator[None]:
    """Raise what the SDK raises as errors of ours."""
    try:
        yield
    except openai.APIStatusError as error:
        # The whole text, as SDKs give it, would hide the sentence that helps in a dump of the body.
        otherwise = f"{url} answers {error.status_code}: check the URL, the key and the model's name"
        message, kind = said_by(error.body, otherwise)
        raise failure(message, status=error.status_code, kind=kind, headers=error.response.headers) from error
    except openai.APIConnectionError as error:
        raise unreachable(url, error.__cause__ if isinstance(error.__cause__, Exception) else error) from error
    except openai.APIError as error:
        message, kind = said_by(error.body, error.message)
        raise failure(message, kind=kind) from error
    except httpx2.HTTPError as error:
        raise unreachable(url, error) from error
    except ValueError as error:
        raise ProviderError(f"{url} sent what is no JSON ({error}): check that it speaks OpenAI's API") from error


async def served(sdk: AsyncOpenAI) -> dict[str, Mapping[str, Any]]:
    """What a server lists, by name. Raises ProviderError."""
    with as_provider_errors(str(sdk.base_url)):
        return {model.id: model.model_dump() async for model in sdk.models.list()}


async def window_of(sdk: AsyncOpenAI, name: str, url: str | None) -> Window | None:
    """The limits of a model: what its server lists, of OpenAI's own what is known of the name. Raises ProviderError."""
    if url is None:
        return known_window(name, "openai")
    listed = (await served(sdk)).get(name, {})
    for field in CONTEXT_NAMES:
        if isinstance(context := listed.get(field), int) and context > 0:
            return limited(context)
    return None
