"""A pass-through proxy before providers and engines: forwards bytes, and keeps the ledger of what went through."""

from longturn.gateway.budgets import Budget
from longturn.gateway.routes import Upstreams
from longturn.gateway.server import Options, run, running

__all__ = ["Budget", "Options", "Upstreams", "run", "running"]
