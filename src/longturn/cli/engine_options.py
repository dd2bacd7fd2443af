"""The options of every command that starts an engine, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from longturn.cli.sizes import parse_size

if TYPE_CHECKING:
    from longturn.engine import EngineOptions

DISK_BYTES = 8 << 30
"""Size of the disk tier where only its folder is given."""


def _engine(help: str, default: str, **more: Any) -> Any:
    return typer.Option(help=help, show_default=default, rich_help_panel="Engine", **more)


def _cache(help: str, default: str, **more: Any) -> Any:
    return typer.Option(help=help, show_default=default, rich_help_panel="Cache", **more)


SIZE = {"parser": parse_size, "metavar": "SIZE"}


def engine_options(
    model: Annotated[str | None, _engine("A folder, a GGUF file, a hub id, or `demo`.", "demo")] = None,
    served_name: Annotated[str | None, _engine("How clients call the model.", "as --model")] = None,
    device: Annotated[str | None, _engine("auto, cpu, cuda or mps.", "auto")] = None,
    dtype: Annotated[str | None, _engine("auto, bfloat16, float16 or float32.", "auto")] = None,
    weights: Annotated[str | None, _engine("model, or rounded to int8 or int4: faster decode on CPU.", "model")] = None,
    threads: Annotated[int | None, _engine("CPU threads of the model.", "all cores")] = None,
    context: Annotated[int | None, _engine("Most tokens of prompt and answer.", "the model's")] = None,
    max_running: Annotated[int | None, _engine("Requests computed at once.", "16")] = None,
    max_waiting: Annotated[int | None, _engine("Requests in the queue; more are refused.", "256")] = None,
    chunk_tokens: Annotated[int | None, _engine("Most tokens in one step.", "512 on a CPU, else 2048")] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Same bits with or without cache; slower.", rich_help_panel="Engine")
    ] = False,
    device_tokens: Annotated[int | None, _cache("Tokens in the device tier.", "what fits beside the model")] = None,
    host_bytes: Annotated[int | None, _cache("Host memory tier, such as 512MiB; 0: none.", "1GiB", **SIZE)] = None,
    host_tokens: Annotated[int | None, _cache("Host memory tier in tokens.", "by --host-bytes")] = None,
    disk_bytes: Annotated[int | None, _cache("Disk tier.", "none, 8GiB with --disk-dir", **SIZE)] = None,
    disk_dir: Annotated[Path | None, _cache("Folder of the disk tier.", "the user's cache directory")] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Compute every prompt in full.", rich_help_panel="Cache")
    ] = False,
    policy: Annotated[
        str | None, _cache("Cache policy, NAME or NAME:key=value,...; see `longturn lab policies`.", "longturn")
    ] = None,
    page_size: Annotated[int | None, _cache("Tokens in a page.", "16")] = None,
    eviction: Annotated[str | None, _cache("lru, lfu, fifo, slru, priority or cost.", "lru")] = None,
    write_policy: Annotated[
        str | None, _cache("write_through, write_through_selective or write_back.", "write_through")
    ] = None,
) -> EngineOptions:
    """The engine's options as a user gave them. Raises ConfigError for what cannot work."""
    # First of all, while the parameters are the only names here. What is None is left to the engine's own default.
    given = {name: value for name, value in locals().items() if value is not None}
    from longturn.engine import EngineOptions
    from longturn.engine.models import cache_directory

    given["cache"] = not given.pop("no_cache")
    if disk_dir is not None:
        given.setdefault("disk_bytes", DISK_BYTES)
    elif disk_bytes:
        given["disk_dir"] = cache_directory() / "kv"
    return EngineOptions(**given)


def takes_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `engine_options`; it gets their result as its parameter `engine`."""
    own = [parameter for parameter in _parameters(command) if parameter.name != "engine"]
    shared = _parameters(engine_options)

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        engine = engine_options(**{parameter.name: given.pop(parameter.name) for parameter in shared})
        command(engine=engine, **given)

    wrapper.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    return wrapper


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """A function's parameters with real types, without importing the engine for the sake of a type."""
    hints = get_type_hints(function, localns={"EngineOptions": object}, include_extras=True)
    return [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    ]
