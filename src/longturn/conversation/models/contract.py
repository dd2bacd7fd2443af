"""What a conversation asks of a model, and what it gets: the same for every provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from longturn.conversation.models.content import Load
from longturn.conversation.parts import Part
from longturn.conversation.window import Window
from longturn.errors import ProviderError
from longturn.ledger import TokenUse


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request.

    messages, tools: as a view renders them: in OpenAI's chat form, with a model's own blocks under `reasoning` and
    files by their digest; load: gives a file's bytes. use_tools: False disables tools by choice, so that the prefix
    stays as it was. max_output: most tokens of the answer; None leaves it to the provider. temperature: None leaves it.
    session: the conversation, by which caches are found and requests routed.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    use_tools: bool = True
    max_output: int | None = None
    temperature: float | None = None
    session: str | None = None
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer as it comes. Calls are only known whole, in the answer."""

    text: str
    kind: Literal["text", "reasoning"] = "text"


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name, description and parameters (JSON schema) of a tool, without what is around them in OpenAI's form."""
    inner: Mapping[str, Any] = tool.get("function", tool)
    return inner


Finish = Literal["stop", "length", "tool_calls", "refused"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, which ends every stream.

    parts: reasoning, text and calls, in the model's order. use: None where the provider reported no usage that adds
    up. finish: `length` where it was cut. raw_usage: as it came. id: the provider's name for the request.
    """

    parts: tuple[Part, ...]
    finish: Finish
    use: TokenUse | None = None
    raw_usage: Mapping[str, Any] | None = None
    id: str | None = None


class Model(Protocol):
    """A model behind an API. Close it after use."""

    @property
    def name(self) -> str:
        """As requests name it."""
        ...

    @property
    def provider(self) -> str | None:
        """As `genai-prices` knows it; None for a server of any other kind."""
        ...

    @property
    def url(self) -> str | None:
        """Where it is; None for the provider's own address."""
        ...

    @property
    def cache_seconds(self) -> float:
        """After how many seconds without a request its prefix cache has certainly lost a conversation."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer]:
        """Have a request answered: pieces as they come, then the answer. Closing the generator cancels the request.

        Raises ContextOverflow where the request does not fit, and ProviderError for all else that goes wrong.
        """
        ...

    async def window(self) -> Window | None:
        """The model's limits, None where nobody tells. Raises ProviderError."""
        ...

    async def close(self) -> None:
        """Let go of the connections."""
        ...


async def answer_of(model: Model, request: ModelRequest) -> Answer:
    """The whole answer to a request whose pieces nobody watches. Raises as `Model.stream` does."""
    async with aclosing(model.stream(request)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Answer):
                return piece
    raise ProviderError(f"{model.name} ended its stream without an answer: try again", retryable=True)
