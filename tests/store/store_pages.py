"""Pages whose content follows from their number, so that every answer can be checked."""

import numpy as np

from longturn.store import Page, Pages, PageStore

PAGE = 64


def key(number: int) -> bytes:
    return number.to_bytes(16, "little", signed=False)


def page(number: int, page_bytes: int = PAGE) -> Page:
    return np.random.default_rng(number).integers(0, 256, page_bytes, np.uint8)


def keys(numbers: list[int] | range) -> list[bytes]:
    # Key 0 would be all zero, which means "deleted" on disk; content hashes are never that.
    return [key(number + 1) for number in numbers]


def pages(numbers: list[int] | range, page_bytes: int = PAGE) -> Pages:
    return np.array([page(number, page_bytes) for number in numbers], np.uint8).reshape(-1, page_bytes)


def put(store: PageStore, numbers: list[int] | range) -> int:
    return store.put(keys(numbers), pages(numbers, store.page_bytes))


def held(store: PageStore, numbers: list[int] | range) -> list[int]:
    """The numbers that the store answers; fails when an answer is wrong or can be written."""
    found = []
    for number, answer in zip(numbers, store.get(keys(numbers)), strict=True):
        if answer is not None:
            assert not answer.flags.writeable
            np.testing.assert_array_equal(answer, page(number, store.page_bytes))
            found.append(number)
    return found
