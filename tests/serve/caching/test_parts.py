"""Where parts of a request end in its tokens."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from longturn.dialects.talk import Talk
from longturn.engine import ModelInfo
from longturn.serve.caching.parts import tokens_and_ends
from longturn.serve.chat_prompt import chat_text
from longturn.serve.encoding import Encoding
from tests.tiny_model import build_tiny_tokenizer

TOKENIZER = build_tiny_tokenizer()
ENCODING = Encoding(TOKENIZER, ModelInfo("tiny", 2048, 300, "", 0))


def written(texts: list[str]) -> Callable[[Callable[[int], str]], Talk]:
    def write(mark: Callable[[int], str]) -> Talk:
        roles = ("user", "assistant")
        return Talk([{"role": roles[i % 2], "content": text + mark(i)} for i, text in enumerate(texts)])

    return write


@given(st.lists(st.text("ab \n\ue000\ue0010é", max_size=12).map(lambda text: text + "x"), min_size=1, max_size=5))
def test_every_part_ends_where_its_text_does(texts: list[str]):
    tokens, ends = tokens_and_ends(ENCODING, TOKENIZER, written(texts), len(texts))
    whole = chat_text(TOKENIZER, written(texts)(lambda i: ""))
    assert tokens.tolist() == TOKENIZER(whole, add_special_tokens=False).input_ids
    for i in range(len(texts)):
        before = chat_text(TOKENIZER, Talk(written(texts)(lambda i: "").messages[: i + 1]))
        end = ends[i]
        assert end is not None
        # The tokens before the end spell a beginning of the text that reaches the part's last character or nearly.
        spelled = TOKENIZER.decode(tokens[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert before.startswith(spelled)
        assert len(spelled) >= before.rindex(texts[i].strip()) + len(texts[i].strip()) - 2


def test_a_part_that_is_not_written_has_no_end():
    _, ends = tokens_and_ends(ENCODING, TOKENIZER, written(["one", "two"]), 3)
    first, second, third = ends
    assert third is None
    assert 0 < (first or 0) < (second or 0)


def test_a_template_that_trims_keeps_its_parts():
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
    tokens, ends = tokens_and_ends(ENCODING, tokenizer, written(["one  ", "  two"]), 2)
    spelled = [tokenizer.decode(tokens[:end], clean_up_tokenization_spaces=False) for end in ends]
    assert spelled == ["<user>one", "<user>one</s><assistant>two"]
