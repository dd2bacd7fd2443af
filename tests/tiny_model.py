"""Models small enough for tests: random weights, a byte-level tokenizer, files as a real model folder has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

Kind = Literal["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3"]

VOCAB = 300
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
# Enough merges to fill the vocabulary, so that some tokens are several bytes long, as in real models.
MERGES = (
    *("Ġ t", "h e", "i n", "Ġ a", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "Ġ w", "o r", "e n", "i s", "Ġ o", "a n"),
    *("o u", "Ġ b", "e s", "i t", "Ġ c", "Ġ f", "in g", "e d", "Ġ p", "a l", "Ġ h", "a r", "l l", "Ġo f", "an d"),
    *("Ġ l", "Ġ d", "Ġ m", "l e", "Ġ n", "i c", "Ġt o", "r o", "Ġ y"),
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tiny_model(
    folder: Path, *, layers: int = 2, kind: Kind = "llama", context: int = 2048, seed: int = 0, tied: bool = False
) -> Path:
    """Write a random model of 300 tokens and hidden size 64 into `folder` and return it.

    The same arguments give the same weights. They are large enough that greedy answers vary with every prompt token.
    The Gemmas have a window of 64 tokens in every second layer, from the first on. tied: the head is the embedding.
    """
    config = _config(kind, layers, context)
    config.tie_word_embeddings = tied
    tokenizer = build_tiny_tokenizer(context)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, weight in model.named_parameters():
            # Norms and biases stay as they are. The Gemmas multiply embeddings by 8, the root of the hidden size.
            if weight.dim() > 1:
                std = 0.3 if "embed" not in name else 1 / 8 if kind.startswith("gemma") else 1.0
                torch.nn.init.normal_(weight, std=std)
        # Readable answers that seldom end by themselves: bytes outside ASCII and special tokens are unlikely.
        with torch.no_grad():
            model.lm_head.weight[[n for token, n in tokenizer.get_vocab().items() if not _readable(token)]] *= 0.1
    model.generation_config = GenerationConfig(eos_token_id=[256, 258], pad_token_id=259)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build_tiny_tokenizer(context: int = 2048) -> PreTrainedTokenizerFast:
    """Bytes are tokens 0 to 255, then come the special tokens and the merges. Its chat template knows no tools."""
    vocab = {byte: number for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {special: 256 + number for number, special in enumerate(SPECIALS)}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    vocab |= {"".join(merge): 260 + number for number, merge in enumerate(merges)}
    assert len(vocab) == VOCAB
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|endoftext|>", "<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def _readable(token: str) -> bool:
    text = token.replace("Ġ", "")
    return text.isascii() and token not in SPECIALS


def _config(kind: Kind, layers: int, context: int) -> PreTrainedConfig:
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": context,
        "bos_token_id": None,
        "eos_token_id": 258,
        "pad_token_id": 259,
        "tie_word_embeddings": False,
    }
    windowed: dict[str, Any] = {
        "sliding_window": 64,
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
        "query_pre_attn_scalar": 16,
    }
    match kind:
        case "llama":
            return LlamaConfig(**shape)
        case "qwen2":
            return Qwen2Config(**shape)
        case "qwen3":
            return Qwen3Config(**shape)
        case "mistral":
            return MistralConfig(**shape, sliding_window=None)
        case "gemma2":
            return Gemma2Config(**shape, **windowed)
        case "gemma3":
            return Gemma3TextConfig(**shape, **windowed)
