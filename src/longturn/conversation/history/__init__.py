"""The full history: append-only sessions that branch, durable before anything is acknowledged."""

from longturn.conversation.history.coding import Undo
from longturn.conversation.history.history import History, Made, Whole
from longturn.conversation.history.requests import Request, Sent
from longturn.conversation.history.session import Session, SessionInfo

__all__ = ["History", "Made", "Request", "Sent", "Session", "SessionInfo", "Undo", "Whole"]
