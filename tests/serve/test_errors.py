"""What goes wrong reaches the client in OpenAI's shape, and the SDK's classes."""

from __future__ import annotations

import gzip
import logging

import httpx
import openai
import pytest
from openai import OpenAI

from longturn.serve import create_app, in_background
from tests.serve.fake_service import FakeService

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("change", "status", "param", "code"),
    [
        ({"model": "nope"}, 404, "model", "model_not_found"),
        ({"model": None}, 400, "model", None),
        ({"prompt": [5] * 5000}, 400, "prompt", "context_length_exceeded"),
        ({"prompt": "x" * 100_000}, 400, "prompt", "context_length_exceeded"),
        ({"prompt": [5] * 2000, "max_tokens": 49}, 400, "max_tokens", "context_length_exceeded"),
        ({"prompt": {"a": 1}}, 400, "prompt", None),
        ({"prompt": ""}, 400, "prompt", None),
        ({"prompt": []}, 400, "prompt", None),
        ({"prompt": [10**9]}, 400, "prompt", None),
        ({"prompt": [-1]}, 400, "prompt", None),
        ({"prompt": [300]}, 400, "prompt", None),
        ({"max_tokens": -3}, 400, "max_tokens", None),
        ({"max_tokens": "many"}, 400, "max_tokens", None),
        ({"temperature": 9}, 400, "temperature", None),
        ({"logprobs": 99}, 400, "logprobs", None),
        ({"seed": 1 << 70}, 400, "seed", None),
        ({"stop": [""]}, 400, "stop", None),
        ({"n": 0}, 400, "n", None),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options", None),
    ],
)
def test_a_bad_completion_is_refused(http: httpx.Client, change: dict, status: int, param: str, code: str | None):
    answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "hi", **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) > 20


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_bad_chat_is_refused(http: httpx.Client, change: dict, param: str):
    answer = http.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"a":NaN}', b"[" * 10_000])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_what_is_no_json_object_is_refused(http: httpx.Client, path: str, body: bytes):
    answer = http.post(path, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_unknown_addresses_and_methods(http: httpx.Client):
    assert http.get("/nope").json()["error"]["code"] == "unknown_url"
    assert http.get("/nope").status_code == 404
    answer = http.get("/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert answer.json()["error"]["message"] == "GET /v1/completions is not served here: use POST."


@pytest.mark.parametrize("path", ["/v1/v1/messages", "/v1/v1beta/models/tiny:generateContent"])
def test_a_base_url_with_a_version_too_many_is_told(http: httpx.Client, path: str):
    answer = http.post(path)
    assert answer.status_code == 404
    assert "leave /v1 out of its base URL" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1beta/models/tiny:generateContent"])
def test_a_compressed_body_is_not_called_bad_json(http: httpx.Client, path: str):
    packed = gzip.compress(b'{"model": "tiny"}')
    answer = http.post(path, content=packed, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415
    assert "'gzip' are not read: send it as it is" in answer.json()["error"]["message"]
    # What is not compressed may say so.
    answer = http.post(path, content=b"{", headers={"Content-Encoding": "identity"})
    assert answer.status_code == 400


def test_a_body_over_the_limit_is_refused(http: httpx.Client):
    answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "x" * (1 << 20)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    # Without a declared length, too.
    answer = http.post("/v1/completions", content=(b" " * (1 << 18) for _ in range(5)))
    assert answer.status_code == 413


def test_the_sdk_raises_its_own_classes(client: OpenAI):
    with pytest.raises(openai.NotFoundError, match="'nope' is not served here"):
        client.chat.completions.create(model="nope", messages=HELLO)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/nope")
    with pytest.raises(openai.BadRequestError, match="shorten") as caught:
        client.completions.create(model="tiny", prompt=[5] * 5000, stream=True)
    assert caught.value.code == "context_length_exceeded"


def test_an_error_in_a_stream_is_its_last_event():
    fake = FakeService(["one", "two"], "error", RuntimeError("secret content"))
    with in_background(create_app(fake), fake) as url:
        body = {"model": "tiny", "messages": HELLO, "stream": True}
        events = httpx.post(f"{url}/v1/chat/completions", json=body).text.split("\n\n")
        assert '"error"' in events[-2]
        assert "[DONE]" not in "".join(events)
        assert "secret" not in "".join(events)
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIError, match="see the server's log"):
            list(client.chat.completions.create(**body))
        answer = httpx.post(f"{url}/v1/chat/completions", json=body | {"stream": False})
        assert answer.status_code == 500


def test_an_engine_that_closes_ends_answers_with_an_error():
    fake = FakeService(["one", "two"], "cancelled")
    with in_background(create_app(fake), fake) as url:
        body = {"model": "tiny", "messages": HELLO}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        stream = httpx.post(f"{url}/v1/chat/completions", json=body | {"stream": True}).text
        assert "shutting_down" in stream
        assert "[DONE]" not in stream


def test_an_unexpected_error_shows_nothing_of_its_inside(caplog: pytest.LogCaptureFixture):
    secret = "secret content"

    def fail() -> None:
        raise ValueError(secret)

    fake = FakeService(on_submit=fail)
    with in_background(create_app(fake), fake) as url, caplog.at_level(logging.INFO):
        answer = httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "secret"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "ValueError" in caplog.text
    assert secret not in answer.text + caplog.text
