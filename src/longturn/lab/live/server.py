"""The server under test: whether it may be loaded, which engine it is, what it serves, how long its window is."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

import httpx

from longturn.dialects.engines import ENGINES, Engine, detect, metrics_paths, named
from longturn.errors import ConfigError, LongturnError
from longturn.lab.live.metrics import TIMEOUT, fetch


@dataclass(frozen=True, slots=True)
class Server:
    """What was found. window: tokens of prompt and answer, None where the server does not tell."""

    engine: Engine
    model: str
    window: int | None
    notes: list[str] = field(default_factory=list)


def check_address(url: str, *, allow_remote: bool) -> None:
    """Raises ConfigError for what is no HTTP URL, and for another machine's unless that is allowed."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url!r} is no URL ({error}): give one such as http://127.0.0.1:8000") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{url!r} is no HTTP URL: give one such as http://127.0.0.1:8000")
    if not allow_remote and not _is_loopback(parsed.host):
        raise ConfigError(
            f"{parsed.host} is not this machine. What is sent is synthetic, but it is load, and may cost money: add "
            "--allow-remote if that server is yours to load"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def find(client: httpx.AsyncClient, *, engine: str | None, model: str | None, window: int | None) -> Server:
    """Ask the server what it is; what is given is not asked for. Raises LongturnError if there is none."""
    listed = await _get(client, "/v1/models")
    entries = listed.get("data")
    entry = next((one for one in entries if isinstance(one, dict)), {}) if isinstance(entries, list) else {}
    chosen, notes = (named(engine), []) if engine else await _recognise(client, entry)
    name = model or entry.get("id")
    if not isinstance(name, str):
        raise LongturnError(f"{client.base_url}v1/models names no model: give --model")
    if window is None:
        window = entry.get("max_model_len")
        if chosen.window_at:
            path, *keys = chosen.window_at
            found: Any = await _get(client, path)
            for key in keys:
                found = found.get(key) if isinstance(found, dict) else None
            window = found
    return Server(chosen, name, window if isinstance(window, int) and window > 0 else None, notes)


async def _recognise(client: httpx.AsyncClient, entry: dict[str, Any]) -> tuple[Engine, list[str]]:
    pages = [text for path in metrics_paths() if (text := await _page(client, path))]
    owner = entry.get("owned_by")
    if found := detect(pages, owner if isinstance(owner, str) else None):
        return found, []
    note = "the engine was not recognised: text is sent, no metrics are read; --engine names it"
    return ENGINES["openai"], [note]


async def _page(client: httpx.AsyncClient, path: str) -> str | None:
    try:
        return await fetch(client, path)
    except httpx.HTTPError:
        return None


async def _get(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """A JSON object of the server; an empty one where it has none at `path`."""
    try:
        response = await client.get(path, timeout=TIMEOUT)
    except httpx.HTTPError as error:
        raise LongturnError(
            f"no server answers at {client.base_url} ({type(error).__name__}): start it, or mend --url"
        ) from None
    if response.status_code in (401, 403):
        raise LongturnError(f"the server refuses the key (HTTP {response.status_code}): set LONGTURN_API_KEY")
    if response.status_code == 503:
        raise LongturnError(
            f"the server at {client.base_url} is not ready (HTTP 503): wait until it has loaded its model"
        )
    try:
        found = response.json() if response.is_success else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}
