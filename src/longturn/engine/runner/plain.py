"""Models of the plain families, read from their files without `transformers`.

Of a model whose every part is computed by kernels of our own, `transformers` would only name the weights, and getting
its code for models ready takes a second and tens of megabytes. What is read here has modules of the same names, and no
forward. Only what is known to the last setting is taken: for all else there is `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# What a config must say, since what it leaves out differs by family.
_NUMBERS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "head_dim"),
)
_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class PlainConfig(SimpleNamespace):
    """The settings of config.json, with `head_dim` and `rope_theta`."""

    def get_text_config(self) -> PlainConfig:
        """Itself: there is nothing but text."""
        return self


def plain_config(folder: Path) -> PlainConfig | None:
    """The settings of the model in `folder`; None unless it is plain.

    Plain are full attention, rotary over the whole head without scaling, SiLU, and weights as they were trained.
    """
    try:
        given: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        kind = given["model_type"]
        rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
        if rope.get("rope_theta") is not None:
            given["rope_theta"] = rope["rope_theta"]
        if given.get("head_dim") is None and kind != "qwen3":
            given["head_dim"] = given["hidden_size"] // given["num_attention_heads"]
        plain = (
            given["architectures"] == [_ARCHITECTURES[kind]]
            and all(isinstance(given[name], int | float) and given[name] > 0 for name in _NUMBERS)
            and given["num_attention_heads"] % given["num_key_value_heads"] == 0
            and isinstance(given["tie_word_embeddings"], bool)
            and given["hidden_act"] == "silu"
            and not given.get("quantization_config")
            and set(rope) <= {"rope_type", "type", "rope_theta"}
            and rope.get("rope_type", rope.get("type", "default")) == "default"
            and given.get("partial_rotary_factor") in (None, 1)
            and not _windowed(kind, given)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None
    return PlainConfig(**given) if plain else None


def _windowed(kind: str, given: Mapping[str, Any]) -> bool:
    if any(layer != "full_attention" for layer in given.get("layer_types") or ()):
        return True
    if kind == "mistral":
        return "sliding_window" not in given or given["sliding_window"] is not None
    return bool(given.get("use_sliding_window"))


class _Linear(nn.Linear):
    def __init__(self, n_in: int, n_out: int, bias: bool) -> None:
        super().__init__(n_in, n_out, bias, dtype=torch.bfloat16)

    def reset_parameters(self) -> None:
        """Leave the weight as it is: it takes no memory until it is written."""


class PlainNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=torch.bfloat16))
        self.variance_epsilon = eps


class _Attention(nn.Module):
    def __init__(self, config: PlainConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        kind, hidden, dim = config.model_type, config.hidden_size, config.head_dim
        biased = kind == "qwen2" or (kind != "mistral" and getattr(config, "attention_bias", False))
        queries, kv = config.num_attention_heads * dim, config.num_key_value_heads * dim
        self.q_proj = _Linear(hidden, queries, bias=biased)
        self.k_proj = _Linear(hidden, kv, bias=biased)
        self.v_proj = _Linear(hidden, kv, bias=biased)
        self.o_proj = _Linear(queries, hidden, bias=biased and kind != "qwen2")
        if kind == "qwen3":
            self.q_norm, self.k_norm = PlainNorm(dim, config.rms_norm_eps), PlainNorm(dim, config.rms_norm_eps)
        self.head_dim, self.scaling, self.layer_idx, self.sliding_window = dim, dim**-0.5, layer, None


class _MLP(nn.Module):
    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        self.config = config
        hidden, width = config.hidden_size, config.intermediate_size
        biased = config.model_type == "llama" and getattr(config, "mlp_bias", False)
        self.gate_proj = _Linear(hidden, width, bias=biased)
        self.up_proj = _Linear(hidden, width, bias=biased)
        self.down_proj = _Linear(width, hidden, bias=biased)


class PlainLayer(nn.Module):
    """The parts of a decoder layer."""

    def __init__(self, config: PlainConfig, layer: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(config, layer), _MLP(config)
        self.input_layernorm = PlainNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = PlainNorm(config.hidden_size, config.rms_norm_eps)


class _Rotary:
    """By how much positions turn: float32 until the end, as `transformers` does it."""

    rope_type = "default"

    def __init__(self, config: PlainConfig) -> None:
        self._theta, self._dim = config.rope_theta, config.head_dim

    def __call__(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, of the type of x, [.., T, d], of positions int64 [.., T]."""
        frequencies = 1.0 / (self._theta ** (torch.arange(0, self._dim, 2).float() / self._dim))
        turns = positions[..., None].float() * frequencies
        both = torch.cat((turns, turns), -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


class _Decoder(nn.Module):
    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        unread = torch.empty(config.vocab_size, config.hidden_size, dtype=torch.bfloat16)
        self.embed_tokens: Any = nn.Embedding.from_pretrained(unread)  # type: ignore[no-untyped-call]
        self.layers = nn.ModuleList(PlainLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = PlainNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = _Rotary(config)


class PlainCausalLM(nn.Module):
    """Embedding, layers, norm, head. Without weights until `read`: until then none takes memory."""

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Decoder(config)
        self.lm_head = _Linear(config.hidden_size, config.vocab_size, bias=False)
        self._tie()

    def read(self, folder: Path) -> bool:
        """Take the weights of `folder`, in bfloat16; False if they are not those that the settings name.

        Raises whatever is raised for files that cannot be read.
        """
        wanted = dict(self.named_parameters())
        found: dict[str, Tensor] = {}
        for file in _files(folder):
            found |= _tensors(file)
        if found.keys() != wanted.keys() or any(found[name].shape != one.shape for name, one in wanted.items()):
            return False
        for name, weight in found.items():
            parent, _, own = name.rpartition(".")
            setattr(self.get_submodule(parent), own, nn.Parameter(weight.to(torch.bfloat16), requires_grad=False))
        self._tie()
        return True

    def get_input_embeddings(self) -> nn.Module:
        """What turns tokens into vectors."""
        embedding: nn.Module = self.model.embed_tokens
        return embedding

    def set_input_embeddings(self, embedding: nn.Module) -> None:
        """Replace it."""
        self.model.embed_tokens = embedding

    def get_output_embeddings(self) -> nn.Module:
        """What turns vectors into logits."""
        return self.lm_head

    def _tie(self) -> None:
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight


def _files(folder: Path) -> list[Path]:
    if (folder / _ONE_FILE).is_file():
        return [folder / _ONE_FILE]
    named = json.loads((folder / _INDEX).read_bytes())["weight_map"].values()
    return [folder / name for name in sorted(set(named))]


def _tensors(file: Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
