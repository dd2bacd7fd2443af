import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from longturn.engine.detokenizer import StopMatcher, StreamDetokenizer

CORPUS = ["the quick brown fox jumps over the lazy dog", "the dog and the fox 日本 日本 é é 🎉 🎉"] * 3


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    )
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def byte_fallback():
    """A sentencepiece-like vocabulary: Llama 2's decoder, which strips the first space."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁fox", "fox", "é", "日"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()
BYTE = {byte: BYTE_FALLBACK.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256)}


def whole(tokenizer, ids, **kwargs):
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False, **{"skip_special_tokens": True, **kwargs})


def streamed(tokenizer, ids, **kwargs):
    stream = StreamDetokenizer(tokenizer, **kwargs)
    return [stream.push([token]) for token in ids], stream.finish()


texts = st.lists(
    st.one_of(
        st.text(max_size=6), st.sampled_from(["👩‍👩‍👧", "日本語", "e\u0301", "🇨🇭", " the fox", "\ufffd", "\n\n"])
    ),
    max_size=8,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(texts)
def test_the_pieces_are_the_whole_and_no_half_characters(text):
    ids = BYTE_LEVEL.encode(text)
    pieces, rest = streamed(BYTE_LEVEL, ids)
    assert "".join(pieces) + rest == text
    if "\ufffd" not in text:
        assert rest == ""
        assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len(BYTE_LEVEL) + 20), max_size=60), st.data())
def test_any_tokens_in_any_pushes_give_the_whole(ids, data):
    pieces, rest = streamed(BYTE_LEVEL, ids)
    expected = whole(BYTE_LEVEL, ids)
    assert "".join(pieces) + rest == expected
    cut = data.draw(st.integers(0, len(ids)))
    stream = StreamDetokenizer(BYTE_LEVEL)
    assert stream.push(ids[:cut]) + stream.push(ids[cut:]) + stream.finish() == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["▁", "▁the", "▁fox", "fox", "é", "日", "🎉", "ß", "</s>"]), max_size=20))
def test_byte_fallback_and_leading_spaces(pieces):
    ids = []
    for piece in pieces:
        known = BYTE_FALLBACK.convert_tokens_to_ids(piece)
        ids += [known] if known else [BYTE[byte] for byte in piece.encode()]
    given_out, rest = streamed(BYTE_FALLBACK, ids)
    assert "".join(given_out) + rest == whole(BYTE_FALLBACK, ids)
    assert rest == ""


def test_an_answer_that_continues_the_prompt_keeps_its_space():
    the, fox = BYTE_FALLBACK.convert_tokens_to_ids(["▁the", "▁fox"])
    assert streamed(BYTE_FALLBACK, [fox]) == (["fox"], "")
    assert streamed(BYTE_FALLBACK, [fox], prompt_tail_ids=[the]) == ([" fox"], "")


def test_a_character_begun_in_the_prompt_is_finished_in_the_answer():
    first, *others = BYTE_LEVEL.encode("ß")
    assert others
    pieces, rest = streamed(BYTE_LEVEL, others, prompt_tail_ids=[*BYTE_LEVEL.encode("the "), first])
    assert "".join(pieces) + rest == "ß"


def test_special_tokens():
    the, end, tool = BYTE_LEVEL.encode("the")[0], BYTE_LEVEL.eos_token_id, BYTE_LEVEL.convert_tokens_to_ids("<tool>")
    ids = [the, end, tool, the]
    pieces, rest = streamed(BYTE_LEVEL, ids)
    assert "".join(pieces) + rest == whole(BYTE_LEVEL, ids)
    assert "<tool>" in "".join(pieces)
    pieces, rest = streamed(BYTE_LEVEL, ids, skip_special_tokens=False)
    assert "".join(pieces) + rest == whole(BYTE_LEVEL, ids, skip_special_tokens=False)


def test_an_unfinished_character_comes_out_at_the_end_only():
    first = BYTE_LEVEL.encode("ß")[0]
    assert streamed(BYTE_LEVEL, [first]) == ([""], "\ufffd")
    half = BYTE[0xE6]
    ids = [BYTE[byte] for byte in "日".encode()] + [half]
    assert streamed(BYTE_FALLBACK, ids) == (["", "", "日", ""], "\ufffd")


@pytest.mark.parametrize("filler", ["broken byte", "special", "unknown"])
def test_endless_tokens_without_text_do_not_pile_up(filler):
    broken = BYTE_LEVEL.encode("ß")[1]
    token = {"broken byte": broken, "special": BYTE_LEVEL.eos_token_id, "unknown": len(BYTE_LEVEL) + 5}[filler]
    stream = StreamDetokenizer(BYTE_LEVEL)
    ids = [token] * 500 + BYTE_LEVEL.encode("日本 the ß")
    pieces = []
    for one in ids:
        pieces.append(stream.push([one]))
        assert len(stream._window) < 20
    assert "".join(pieces) + stream.finish() == whole(BYTE_LEVEL, ids)


def matched(stops, pushes):
    matcher = StopMatcher(stops)
    out = ""
    for text in pushes:
        new, stopped = matcher.push(text)
        out += new
        if stopped:
            return out, matcher.matched
    return out + matcher.finish(), None


def test_stop_strings_are_held_back_and_never_given_out():
    matcher = StopMatcher(("END", "\n\n"))
    assert matcher.push("abc E") == ("abc ", False)
    assert matcher.push("N") == ("", False)
    assert matcher.push("x\n") == ("ENx", False)
    assert matcher.push("y END more") == ("\ny ", True)
    assert matcher.matched == "END"
    assert matcher.push("again") == ("", True)
    assert matcher.finish() == ""


def test_what_was_held_comes_out_at_the_end():
    matcher = StopMatcher(("END",))
    assert matcher.push("the EN") == ("the ", False)
    assert matcher.finish() == "EN"


def test_without_stop_strings_everything_passes():
    assert matched((), ["a", "b"]) == ("ab", None)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("abcd", max_size=20),
    st.lists(st.integers(0, 20), max_size=5),
)
def test_the_first_stop_to_be_complete_wins_for_any_pushes(stops, text, cuts):
    ends = [end for end in range(len(text) + 1) if text[:end].endswith(tuple(stops))]
    expected = text
    if ends:
        expected = min((text[: ends[0] - len(stop)] for stop in stops if text[: ends[0]].endswith(stop)), key=len)
    cuts = sorted(min(cut, len(text)) for cut in cuts)
    pushes = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    out, stop = matched(tuple(stops), pushes)
    assert out == expected
    assert (stop is not None) == bool(ends)


@settings(max_examples=100, deadline=None)
@given(texts, st.text(min_size=1, max_size=3))
def test_tokens_to_stopped_text(text, stop):
    pieces, rest = streamed(BYTE_LEVEL, BYTE_LEVEL.encode(text))
    out, _ = matched((stop,), [*pieces, rest])
    assert out == text.split(stop)[0]
