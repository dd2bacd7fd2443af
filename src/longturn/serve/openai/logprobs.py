"""The engine's samples as logprobs of text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from longturn.dialects.openai import TokenLogprob

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from longturn.engine.sampling import Sampled


def token_logprobs(tokenizer: PreTrainedTokenizerBase, samples: Iterable[Sampled]) -> list[TokenLogprob]:
    """One entry for each sample that has a logprob, which is when the request asked for them."""

    def text(token: int) -> str:
        return str(tokenizer.decode([token], clean_up_tokenization_spaces=False))

    return [
        TokenLogprob(
            text(sample.token),
            sample.logprob,
            tuple((text(token), logprob) for token, logprob in sample.top or ()),
        )
        for sample in samples
        if sample.logprob is not None
    ]
