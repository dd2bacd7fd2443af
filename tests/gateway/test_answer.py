"""What answers say about themselves, read along from whatever pieces they come in."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from longturn.explain.exchange import counts
from longturn.gateway.answer import Answer, AnswerReader
from tests.conversation.models.replies import transcript
from tests.conversation.models.wires import EVENTS, stream

DIALECTS = {"chat": "openai-chat", "responses": "openai", "anthropic": "anthropic", "gemini": "gemini"}
SSE = "text/event-stream; charset=utf-8"


def read(dialect: str, body: bytes, kind: str = SSE, encoding: str = "", size: int = 7) -> Answer:
    reader = AnswerReader(dialect, kind, encoding)
    for start in range(0, len(body), size):
        reader.feed(body[start : start + size])
    return reader.finish()


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("O1", "openai-chat"),
        ("O2", "openai-chat"),
        ("O3", "openai"),
        ("O4", "openai"),
        ("A1", "anthropic"),
        ("A2", "anthropic"),
        ("G1", "gemini"),
        ("G2", "gemini"),
    ],
)
def test_transcripts_of_real_providers(name: str, dialect: str) -> None:
    reply = transcript(name)
    found = read(dialect, reply.body.encode(), reply.kind)
    assert found.usage
    use = counts(found.usage, dialect)
    assert use is not None
    assert use.logical > 0
    assert use.output > 0
    assert found.model
    assert found.finish
    assert (found.ended, found.garbled, found.error, found.trouble) == (True, 0, None, None)


@pytest.mark.parametrize(("name", "dialect"), [("O8", "openai-chat"), ("A6", "anthropic"), ("G10", "gemini")])
def test_errors_name_their_type(name: str, dialect: str) -> None:
    reply = transcript(name)
    found = read(dialect, reply.body.encode(), reply.kind)
    assert found.error
    assert found.usage is None


@pytest.mark.parametrize("kind", DIALECTS)
@given(cuts=st.lists(st.integers(0, 3000), max_size=12), crlf=st.booleans())
def test_pieces_do_not_matter(kind: str, cuts: list[int], crlf: bool) -> None:
    body = stream(kind, EVENTS[kind]()).body.encode()
    if crlf:
        body = body.replace(b"\n", b"\r\n")
    reader = AnswerReader(DIALECTS[kind], SSE, "")
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, end in pairwise(edges):
        reader.feed(body[start:end])
    assert reader.finish() == read(DIALECTS[kind], body, size=len(body))
    assert reader.answer.ended
    use = counts(reader.answer.usage or {}, DIALECTS[kind])
    assert use is not None
    assert (use.logical, use.cached_total, use.output) == (100, 64, 9)


@pytest.mark.parametrize("kind", DIALECTS)
def test_every_cut_is_noticed(kind: str) -> None:
    body = stream(kind, EVENTS[kind]()).body.encode()
    last = body.rstrip().rindex(b"data:")
    for size in range(1, last, 41):
        found = read(DIALECTS[kind], body[:size], size=len(body))
        assert not found.ended or kind in ("chat", "gemini"), size
    assert read(DIALECTS[kind], body[: last + 9], size=len(body)).garbled == 1


def compressed(body: bytes) -> dict[str, bytes]:
    return {
        "gzip": gzip.compress(body),
        "deflate": zlib.compress(body),
        "br": brotli.compress(body),
        "zstd": zstandard.compress(body),
        "gzip, br": brotli.compress(gzip.compress(body)),
        "identity": body,
    }


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, br", "identity"])
def test_compressed_answers_are_read(encoding: str) -> None:
    plain = stream("anthropic", EVENTS["anthropic"]()).body.encode()
    found = read("anthropic", compressed(plain)[encoding], encoding=encoding)
    assert found == read("anthropic", plain)
    assert found.ended


@pytest.mark.parametrize(("encoding", "body"), [("snappy", b"{}"), ("gzip", b"not gzip at all"), ("br", b"\xff" * 99)])
def test_what_cannot_be_decoded_is_said(encoding: str, body: bytes) -> None:
    found = read("openai", body, "application/json", encoding)
    assert found.trouble
    assert not found.ended


@given(st.binary(max_size=300), st.sampled_from([SSE, "application/json", ""]), st.sampled_from([*DIALECTS.values()]))
def test_garbage_raises_nothing(body: bytes, kind: str, dialect: str) -> None:
    assert read(dialect, body, kind).usage is None


def test_gemini_without_events_is_a_list() -> None:
    found = read("gemini", json.dumps(EVENTS["gemini"]()).encode(), "application/json")
    assert found.ended
    assert found.usage is not None
    assert found.usage["thoughtsTokenCount"] == 3
