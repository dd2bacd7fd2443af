"""Where the artifacts of a history are."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url

from longturn.conversation.artifacts.store import Artifacts
from longturn.conversation.history import History
from longturn.conversation.history.database import default_path


def artifacts_of(history: History) -> Artifacts:
    """Those beside its file. A history on a database server has them in the user's data folder."""
    url = make_url(history.name)
    beside = url.database if url.get_backend_name() == "sqlite" and url.database else default_path()
    return Artifacts(Path(beside).absolute().parent / "artifacts")
