"""Taking an address, and giving it back in order."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from longturn.engine import EngineService
from longturn.errors import ConfigError
from longturn.serve import create_app, in_background, listen, run, server, url_of
from tests.serve.conftest import tiny_options


def test_an_address_in_use_is_said_so():
    with listen("127.0.0.1", 0) as sock:
        sock.listen()
        with pytest.raises(ConfigError, match="in use by another program"):
            listen("127.0.0.1", sock.getsockname()[1])


def test_nobody_can_connect_before_the_server_runs():
    with listen("127.0.0.1", 0) as sock, pytest.raises(ConnectionRefusedError):
        socket.create_connection(sock.getsockname(), timeout=1)


@pytest.mark.parametrize(("host", "port"), [("256.1.1.1", 0), ("no.such.host.invalid", 0), ("127.0.0.1", 99999)])
def test_an_address_that_cannot_be(host: str, port: int):
    with pytest.raises(ConfigError, match="choose"):
        listen(host, port)


def test_chunks_are_not_held_back():
    with listen("localhost", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_a_server_that_stops_lets_short_answers_end_and_breaks_off_long_ones(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "GRACE", 0.3)
    service = EngineService.start(tiny_options(tiny_folder))
    body = {"model": "tiny", "prompt": "Once", "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        serving = ExitStack()
        url = serving.enter_context(in_background(create_app(service), service))
        short, long = (
            stack.enter_context(
                httpx.stream("POST", f"{url}/v1/completions", json={**body, "max_tokens": n}, timeout=10)
            ).iter_lines()
            for n in (20, 2000)
        )
        next(short), next(long)
        serving.close()
        assert list(short)[-2] == "data: [DONE]"
        assert "shutting_down" in list(long)[-2]
    assert not service.alive


def test_a_client_that_never_finishes_its_request_does_not_keep_the_server(
    service: EngineService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(server, "LIMIT", 0.2)
    with ExitStack() as stack:
        serving = ExitStack()
        url = serving.enter_context(in_background(create_app(service), service))
        stuck = stack.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(url).port)))
        stuck.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        httpx.get(f"{url}/health")
        serving.close()
    assert "dropped a connection" in caplog.text
    assert service.alive


def test_an_address_that_another_took_meanwhile(service: EngineService, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with listen("127.0.0.1", 0) as first, listen("127.0.0.1", first.getsockname()[1]) as second:
        second.listen()
        with pytest.raises(ConfigError, match="in use"):
            run(create_app(service), service, first)
