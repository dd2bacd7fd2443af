"""An engine in this process behind a server of its own, for commands that talk to a server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from longturn.engine import EngineOptions


@contextmanager
def local_server(options: EngineOptions) -> Iterator[tuple[str, str]]:
    """Serve while the context lasts; gives the URL and the key, without which nobody on this machine gets in."""
    from longturn.engine import EngineService
    from longturn.serve import Keys, create_app, in_background

    service = EngineService.start(options, lambda message: typer.secho(message, dim=True, err=True))
    try:
        key = secrets.token_urlsafe()
        # The key is new every time, but what it finds on disk should be what the last one left there.
        app = create_app(service, Keys([key], shared_cache=True))
        with in_background(app, service) as url:
            yield url, key
    finally:
        service.close()
