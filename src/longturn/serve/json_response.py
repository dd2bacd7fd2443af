"""A response of JSON, encoded where it is made: in a thread, if that is where the answer was prepared."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


class JsonResponse(Response):
    """Like Starlette's own, but faster on long lists of tokens."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return msgspec.json.encode(content)
