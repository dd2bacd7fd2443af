"""Right answers from every tier, under every write policy, and when a tier fails. Slow is allowed, wrong is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longturn.cache import ORDERS, WRITE_POLICIES
from longturn.store import Page
from tests.engine.rig import PAGE, PAGE_BYTES, Reference, Rig, random_tokens, rig
from tests.tiny_model import Kind

HOST = 60 * PAGE_BYTES
N = 200
WHOLE = N // PAGE * PAGE


@pytest.fixture
def tiers(tmp_path: Path) -> dict[str, Any]:
    return {"host_bytes": HOST, "disk_bytes": 4 << 20, "disk_dir": tmp_path}


def prompt(seed: int = 1, n: int = N) -> list[int]:
    return random_tokens(n, seed)


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_every_tier_gives_the_same_answer(
    tiny: Callable[[Kind], Path], kind: Kind, tiers: dict[str, Any], write_policy: str
) -> None:
    with rig(tiny(kind), **tiers, write_policy=write_policy) as one:
        wanted = one.ask(prompt(), 20).tokens
        again = one.ask(prompt(), 20)
        assert again.cached == {"device": N - 1}
        one.clear("device")
        host = one.ask(prompt(), 20)
        # The answer has completed the last page, of which a part is used; it had only one use itself.
        assert host.cached == {"host": WHOLE if write_policy == "write_through_selective" else N - 1}
        one.clear("device", "host")
        disk = one.ask(prompt(), 20)
        assert disk.cached == {"disk": WHOLE}
        for asked in (again, host, disk):
            assert asked.tokens == wanted
        one.idle()
    # And after a restart, from disk alone.
    with rig(tiny(kind), **tiers, write_policy=write_policy) as one:
        after = one.ask(prompt(), 20)
        assert after.tokens == wanted
        assert after.cached == {"disk": WHOLE}


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
def test_where_the_write_policies_write(llama: Path, tiers: dict[str, Any], write_policy: str) -> None:
    with rig(llama, **tiers, write_policy=write_policy) as one:
        one.ask(prompt(), 1)
        first = one.tiers()
        one.ask(prompt(), 1)
        second = one.tiers()
        one.clear("device")
        third = one.tiers()
        one.clear("host")
        fourth = one.tiers()
    lower = [(tier["host"], tier["disk"]) for tier in (first, second, third, fourth)]
    assert (
        lower
        == {
            "write_through": [(WHOLE, WHOLE)] * 3 + [(0, WHOLE)],
            "write_through_selective": [(0, 0), (WHOLE, WHOLE), (WHOLE, WHOLE), (0, WHOLE)],
            "write_back": [(0, 0), (0, 0), (WHOLE, 0), (0, WHOLE)],
        }[write_policy]
    )


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
def test_conversations_that_fit_nowhere(
    llama: Path, tiers: dict[str, Any], right: Reference, write_policy: str, order: str
) -> None:
    """Round-robin over more than device and host hold: all of it comes back from below."""
    with rig(llama, **tiers, device_tokens=400, write_policy=write_policy, eviction=order) as one:
        histories = [prompt(i, 150) for i in range(8)]
        for turn in range(3):
            for i, history in enumerate(histories):
                asked = one.ask(history, 5)
                assert asked.tokens == right(history, 5)
                if turn and write_policy == "write_through":
                    assert sum(asked.cached.values()) >= (len(history) - 11) // PAGE * PAGE
                histories[i] = history + asked.tokens + random_tokens(10, 100 * turn + i)
        one.idle()


def test_a_page_that_fits_in_part_is_copied(llama: Path, tiers: dict[str, Any], right: Reference) -> None:
    with rig(llama, **tiers) as one:
        one.ask(prompt(), 1)
        for n in (1, 15, 16, 17, 100, 103):
            one.clear("device")
            asked = one.ask([*prompt()[:n], 1, *prompt(7 + n, 30)], 6)
            assert asked.cached == {"host": n}
            assert asked.tokens == right(asked.prompt, 6)
            # Partly on the device, partly below.
            one.clear("device")
            half = n // 2
            one.ask([*prompt()[:half], 2, *prompt(70 + n, 5)], 1)
            both = one.ask([*prompt()[:n], 3, *prompt(700 + n, 30)], 6)
            assert both.cached == {tier: tokens for tier, tokens in (("device", half), ("host", n - half)) if tokens}
            assert both.tokens == right(both.prompt, 6)
        one.idle()


def test_host_alone_and_disk_alone(llama: Path, tiers: dict[str, Any], right: Reference) -> None:
    for missing in ({"host_bytes": 0}, {"disk_bytes": 0}):
        with rig(llama, **{**tiers, **missing}) as one:
            one.ask(prompt())
            one.clear("device")
            asked = one.ask(prompt())
            assert list(asked.cached.values()) == [WHOLE]
            assert asked.tokens == right(prompt())
            one.idle()


def test_more_than_the_host_holds_comes_from_disk(llama: Path, tiers: dict[str, Any], right: Reference) -> None:
    with rig(llama, **{**tiers, "host_bytes": 6 * PAGE_BYTES}) as one:
        one.ask(prompt())
        one.clear("device", "host")
        asked = one.ask(prompt())
        assert asked.cached == {"disk": WHOLE}
        assert asked.tokens == right(prompt())
        one.idle()


def test_no_cache_remembers_nothing(llama: Path, tiers: dict[str, Any], right: Reference) -> None:
    with rig(llama, **tiers, cache=False) as one:
        for _ in range(3):
            asked = one.ask(prompt())
            assert asked.cached == {}
            assert asked.tokens == right(prompt())
            assert one.tiers() == {"device": 0}
        assert one.built.stores == ()


# -- fetches ---------------------------------------------------------------------------------------------------------


def test_pages_are_fetched_while_a_request_waits(llama: Path, tiers: dict[str, Any], right: Reference) -> None:
    with rig(llama, **tiers, max_running=1) as one:
        one.ask(prompt())
        one.clear("device", "host")
        busy = one.submit(prompt(5, 20), 30)
        waits = one.submit(prompt())
        one.step(5)
        one.engine.mover.finish_fetches(one.cache, 5.0)
        assert one.tiers()["host"] >= WHOLE
        one.run(busy, waits)
        # It still counts as served from disk: that is where it was when the request came.
        assert waits.cached == {"disk": WHOLE}
        assert waits.tokens == right(prompt())
        one.idle()


def test_two_that_want_the_same_pages_fetch_them_once(
    llama: Path, tiers: dict[str, Any], right: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(llama, **tiers) as one:
        one.ask(prompt())
        one.clear("device", "host")
        go, get, reads = threading.Event(), one.disk.get, []

        def slow(keys: list[bytes]) -> list[Page | None]:
            reads.append(len(keys))
            go.wait(10)
            return get(keys)

        monkeypatch.setattr(one.disk, "get", slow)
        asked = [one.submit([*prompt(), 40 + i]) for i in range(3)]
        one.engine.step()
        go.set()
        one.run(*asked)
        assert reads == [WHOLE // PAGE]
        assert [each.tokens for each in asked] == [right(each.prompt) for each in asked]
        assert all(sum(each.cached.values()) >= WHOLE for each in asked)
        one.idle()


# -- failures --------------------------------------------------------------------------------------------------------


def nothing(keys: list[bytes]) -> list[Page | None]:
    return [None] * len(keys)


def broken(*_: Any) -> Any:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("host_bytes", [0, HOST])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("failing", ["nothing", "broken", "some"])
def test_a_disk_that_cannot_be_read(
    llama: Path,
    tiers: dict[str, Any],
    right: Reference,
    monkeypatch: pytest.MonkeyPatch,
    host_bytes: int,
    deterministic: bool,
    failing: str,
) -> None:
    with rig(llama, **{**tiers, "host_bytes": host_bytes}, deterministic=deterministic) as one:
        long = prompt(n=700)
        one.ask(long)
        one.clear("device", *(["host"] if host_bytes else []))
        get, lost = one.disk.get, []

        def some(keys: list[bytes]) -> list[Page | None]:
            lost.extend(keys[20:21] if not lost else [])
            return [None if key in lost else page for key, page in zip(keys, get(keys), strict=True)]

        monkeypatch.setattr(one.disk, "get", {"nothing": nothing, "broken": broken, "some": some}[failing])
        first = one.submit(long)
        one.step()
        asked = [first, one.submit(long[:500]), one.submit(prompt(3))]
        one.run(*asked)
        for each in asked:
            assert each.tokens == right(each.prompt)
        arrived = {False: 20 * PAGE, True: 256}[deterministic] if failing == "some" else 0
        # Those that were fetched before the failure showed count as the host's, if another request was first.
        assert sum(first.cached.values()) == arrived
        assert first.line.use.computed == 700 - arrived
        one.idle()
        # The cache has learnt what is lost, and computed it anew.
        monkeypatch.setattr(one.disk, "get", get)
        assert one.ask(long).tokens == right(long)


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
def test_a_tier_that_cannot_be_written(
    llama: Path, tiers: dict[str, Any], right: Reference, monkeypatch: pytest.MonkeyPatch, tier: str, write_policy: str
) -> None:
    with rig(llama, **tiers, write_policy=write_policy, device_tokens=400) as one:
        for put in (lambda keys, pages: 0, lambda keys, pages: len(keys) // 2, broken):
            monkeypatch.setattr(getattr(one, tier), "put", put)
            for seed in range(4):
                assert one.ask(prompt(seed)).tokens == right(prompt(seed))
            one.clear("device")
            for seed in range(4):
                assert one.ask(prompt(seed)).tokens == right(prompt(seed))
        one.idle()


def test_a_host_that_loses_pages(
    llama: Path, tiers: dict[str, Any], right: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(llama, **tiers) as one:
        one.ask(prompt())
        one.clear("device")
        keys = list(one.host._frames)
        one.host.delete(keys[3:5])
        asked = one.ask(prompt())
        assert asked.tokens == right(prompt())
        assert asked.cached == {"host": 3 * PAGE}
        one.idle()


def damage(folder: Path, rng: np.random.Generator) -> None:
    """Flip a byte of every file, or cut it short."""
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size > 1000:
            content = bytearray(path.read_bytes())
            at = int(rng.integers(len(content)))
            if rng.integers(2):
                content[at] ^= 0x55
            else:
                del content[at:]
            path.write_bytes(content)


def test_damaged_files_are_recomputed(llama: Path, tiers: dict[str, Any], right: Reference) -> None:
    rng = np.random.default_rng(1)
    for _ in range(8):
        with rig(llama, **tiers) as one:
            for seed in range(3):
                assert one.ask(prompt(seed)).tokens == right(prompt(seed))
            one.idle()
        damage(tiers["disk_dir"], rng)


def test_another_model_finds_nothing_on_this_disk(
    tiny: Callable[[Kind], Path], llama: Path, tiers: dict[str, Any]
) -> None:
    def tokens(one: Rig) -> Any:
        asked = one.ask(prompt())
        return asked.cached, asked.tokens

    with rig(llama, **tiers) as one:
        assert tokens(one)[0] == {}
    # Pages of the same size, of another model, dtype and mode.
    with rig(tiny("qwen3"), **tiers) as one, rig(tiny("qwen3")) as alone:
        assert tokens(one) == tokens(alone)
    with rig(llama, **tiers, dtype="bfloat16") as one, rig(llama, dtype="bfloat16") as alone:
        assert tokens(one) == tokens(alone)
    with rig(llama, **tiers, deterministic=True) as one:
        assert tokens(one)[0] == {}
    with rig(llama, **tiers) as one:
        assert tokens(one)[0] == {"disk": WHOLE}


def test_a_small_disk_stays_within_its_bounds(llama: Path, tiers: dict[str, Any], right: Reference) -> None:
    capacity = 30 * PAGE_BYTES
    with rig(llama, **{**tiers, "disk_bytes": capacity, "host_bytes": 5 * PAGE_BYTES}, device_tokens=300) as one:
        for seed in [*range(6), *range(6)]:
            assert one.ask(prompt(seed)).tokens == right(prompt(seed))
            one.disk.flush(5)
            assert sum(path.stat().st_size for path in tiers["disk_dir"].rglob("*") if path.is_file()) <= capacity
        one.idle()


def test_the_line_says_what_was_moved_and_scheduled(llama: Path, tiers: dict[str, Any]) -> None:
    with rig(llama, **tiers) as one:
        assert one.ask(prompt(), 2).line.resources.transfer_bytes == {}
        one.clear("device", "host")
        resources = one.ask(prompt(), 2).line.resources
    moved = WHOLE * PAGE_BYTES // PAGE
    assert resources.transfer_bytes == {"device-host": moved, "host-disk": moved}
    assert 0 < resources.cpu_seconds < 5
    assert resources.device_seconds > 0
