"""Text and token ids of clients as prompts for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from longturn.errors import PromptTooLong, RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from longturn.cache import Tokens
    from longturn.engine import ModelInfo


class Encoding:
    """The tokenizer as routes use it: from several threads at once, and never on text that cannot fit anyway."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: ModelInfo) -> None:
        self._tokenizer = tokenizer
        self._model = model
        longest = max(len(token) for token in tokenizer.get_vocab())
        self._most_characters = longest * model.context
        # The first call sets the tokenizer's truncation and padding; later ones, in threads, then only read them.
        tokenizer("")

    def text(self, text: str, *, param: str = "prompt", add_special_tokens: bool = True) -> Tokens:
        """The tokens of a text, int32 [n]. Raises PromptTooLong, naming `param`, for one beyond all measure."""
        self._check_length(text, param)
        encoded = self._tokenizer(
            text, add_special_tokens=add_special_tokens, return_attention_mask=False, verbose=False
        )
        return np.asarray(encoded.input_ids, dtype=np.int32)

    def parts(self, text: str, ends: Sequence[int], *, param: str = "messages") -> tuple[Tokens, list[int]]:
        """The tokens of a chat's text, int32 [n], and how many of them lie whole before each of `ends` (characters)."""
        self._check_length(text, param)
        encoded = self._tokenizer(
            text, add_special_tokens=False, return_attention_mask=False, return_offsets_mapping=True, verbose=False
        )
        stops = np.asarray([stop for _, stop in encoded.offset_mapping])
        return np.asarray(encoded.input_ids, dtype=np.int32), np.searchsorted(stops, ends, side="right").tolist()

    def _check_length(self, text: str, param: str) -> None:
        if len(text) > self._most_characters:
            raise PromptTooLong(
                f"The prompt has {len(text)} characters, of which at most {self._model.context} tokens can be made: "
                "shorten it.",
                param=param,
            )

    def prompt(self, prompt: str | list[int]) -> Tokens:
        """The tokens of a prompt, int32 [n]. Raises RequestError for an empty one and for ids that are no tokens."""
        if not isinstance(prompt, str):
            size = self._model.vocab_size
            if prompt and not 0 <= min(prompt) <= max(prompt) < size:
                raise RequestError(f"Token ids must lie between 0 and {size - 1}.", param="prompt")
        tokens = self.text(prompt) if isinstance(prompt, str) else np.asarray(prompt, dtype=np.int32)
        if not len(tokens):
            raise RequestError("The prompt is empty: send at least one token.", param="prompt")
        return tokens
