"""The engine server: OpenAI's API over one engine, with the ledger's line in every answer."""

from longturn.listening import listen, url_of
from longturn.serve.app import create_app
from longturn.serve.book_writer import BookWriter
from longturn.serve.keys import Keys
from longturn.serve.server import in_background, run

__all__ = ["BookWriter", "Keys", "create_app", "in_background", "listen", "run", "url_of"]
