"""/tokenize and /detokenize."""

from __future__ import annotations

import httpx
import pytest


def test_there_and_back(http: httpx.Client):
    found = http.post("/tokenize", json={"model": "tiny", "prompt": "the café"}).json()
    assert found["count"] == len(found["tokens"]) > 0
    assert found["max_model_len"] == 2048
    assert http.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": "the café"}


def test_messages_go_through_the_template(http: httpx.Client):
    tokens = http.post("/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]}).json()["tokens"]
    text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": ["a", "b"]}),
        ("/tokenize", {"prompt": [1, 2]}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "abc"}),
        ("/detokenize", {"tokens": []}),
        ("/detokenize", {"tokens": [1, True]}),
        ("/detokenize", {"tokens": [300]}),
    ],
)
def test_what_makes_no_sense_is_refused(http: httpx.Client, path: str, body: dict):
    assert http.post(path, json=body).status_code == 400
