"""The vocabulary of counts as types: what a request contained, found cached, computed and occupied.

The book that keeps the lines is `longturn.ledger.book.Book`; it is not imported here, because it brings SQLAlchemy.
"""

from longturn.ledger.line import RequestLine
from longturn.ledger.meters import Spent, Window
from longturn.ledger.resources import Resources
from longturn.ledger.use import NO_USE, TIERS, TokenUse

__all__ = ["NO_USE", "TIERS", "RequestLine", "Resources", "Spent", "TokenUse", "Window"]
