import copy
import json
import math
import subprocess
import sys

import pytest

from longturn.errors import LedgerError
from longturn.ledger import RequestLine, Resources, Spent, TokenUse, Window


def a_line(**changes: object) -> RequestLine:
    fields: dict = {
        "request_id": "r1",
        "session": "s",
        "model": "m",
        "started_at": 1.7e9,
        "use": TokenUse(logical=100, cached={"device": 60, "disk": 20}, computed=20, output=10, reasoning=4),
        "resources": Resources(device_flops=1e12, transfer_bytes={"host-disk": 4096}),
        "ttft_ms": 12.5,
        "total_ms": 80.0,
        "finish_reason": "stop",
        "miss": "the system prompt changed",
    }
    return RequestLine(**fields | changes)


def test_dict_is_flat_and_comes_back() -> None:
    line = a_line()
    data = json.loads(json.dumps(line.to_dict()))
    assert set(data) == {
        *("logical", "cached", "computed", "output", "reasoning", "written", "ttft_ms", "total_ms", "queue_ms"),
        *("finish_reason", "request_id", "session", "model", "started_at", "purpose", "miss", "resources"),
    }
    assert RequestLine.from_dict(data) == line
    assert RequestLine.from_dict(data | {"of a newer version": 1}) == line
    assert copy.deepcopy(line) == line


@pytest.mark.parametrize(
    "changes",
    [{"request_id": ""}, {"model": ""}, {"started_at": math.nan}, {"ttft_ms": -1.0}, {"total_ms": math.inf}],
)
def test_refuses_unsound_lines(changes: dict) -> None:
    with pytest.raises(LedgerError):
        a_line(**changes)


@pytest.mark.parametrize("change", [{"logical": 7}, {"model": None}, {"resources": []}, {"cached": {"tape": 1}}])
def test_from_dict_refuses_unsound_objects(change: dict) -> None:
    with pytest.raises(LedgerError):
        RequestLine.from_dict(a_line().to_dict() | change)


def test_resources_add_and_come_back() -> None:
    one = Resources(device_seconds=1, cpu_seconds=0.5, transfer_bytes={"device-host": 1})
    other = Resources(device_seconds=2, transfer_bytes={"device-host": 2, "host-disk": 3})
    total = Resources(device_seconds=3, cpu_seconds=0.5, transfer_bytes={"device-host": 3, "host-disk": 3})
    assert one + other == total
    assert Resources.from_dict(json.loads(json.dumps(total.to_dict()))) == total
    assert Resources() + total == total


@pytest.mark.parametrize("fields", [{"cpu_seconds": -1}, {"device_flops": math.inf}, {"transfer_bytes": {"x": -1}}])
def test_resources_refuse_impossible_amounts(fields: dict) -> None:
    with pytest.raises(LedgerError):
        Resources(**fields)


def test_window_shows_the_latest_request_and_spent_sums_them() -> None:
    window, spent = Window(limit=220, reserved_output=20), Spent()
    for line in (a_line(), a_line(), a_line(use=TokenUse(logical=90, cached={}, computed=90, output=10))):
        window.set(line)
        spent.add(line)
    assert (window.used, window.usable, window.fraction, window.raw_fraction) == (100, 200, 0.5, 100 / 220)
    assert (spent.requests, spent.use.logical, spent.use.cached_total, spent.use.output) == (3, 290, 160, 30)


@pytest.mark.parametrize(("limit", "reserved"), [(0, 0), (10, 10), (10, -1)])
def test_window_refuses_a_reserve_without_room(limit: int, reserved: int) -> None:
    with pytest.raises(LedgerError):
        Window(limit, reserved)


def test_the_package_does_not_import_sqlalchemy() -> None:
    code = "import sys, longturn.ledger; sys.exit('sqlalchemy' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
