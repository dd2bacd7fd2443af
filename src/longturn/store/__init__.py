"""Pages of KV by content key: in host memory and on disk."""

from longturn.store.ahead import Ahead
from longturn.store.contract import KEY_BYTES, Page, Pages, PageStore, StoreStats
from longturn.store.disk import DiskStore
from longturn.store.host import HostStore

__all__ = ["KEY_BYTES", "Ahead", "DiskStore", "HostStore", "Page", "PageStore", "Pages", "StoreStats"]
