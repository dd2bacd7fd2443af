"""Prefix caches: what is kept, where, and what goes first. Decides; moves no bytes and touches no tensor."""

from longturn.cache.contract import Allocation, CacheState, Hit, PrefixCache, TierState
from longturn.cache.events import Event
from longturn.cache.eviction import ORDERS
from longturn.cache.hints import Hint
from longturn.cache.policies.longturn import WRITE_POLICIES, LongturnCache, LongturnOptions
from longturn.cache.policies.none import NoCache
from longturn.cache.radix import Tokens
from longturn.cache.slots import Run, Runs
from longturn.cache.transfers import Copy, Drop, Fetch, Load, Save, Transfer

__all__ = [
    "ORDERS",
    "WRITE_POLICIES",
    "Allocation",
    "CacheState",
    "Copy",
    "Drop",
    "Event",
    "Fetch",
    "Hint",
    "Hit",
    "Load",
    "LongturnCache",
    "LongturnOptions",
    "NoCache",
    "PrefixCache",
    "Run",
    "Runs",
    "Save",
    "TierState",
    "Tokens",
    "Transfer",
]
