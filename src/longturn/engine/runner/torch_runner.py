"""The torch runner: a `transformers` model whose attention reads and writes our pool."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from longturn.cache import Run, Runs
from longturn.engine.runner.attention import attend
from longturn.engine.runner.contract import ModelShape, Span
from longturn.engine.runner.kernels import AS_THEY_COME, find_filling
from longturn.engine.runner.layers import Layer, replace_layers, same_bits, share_embedding
from longturn.engine.runner.memory import give_back, own_memory
from longturn.engine.runner.native import INPUTS, WHOLE, Native, Unavailable, find
from longturn.engine.runner.plain import PlainCausalLM, plain_config
from longturn.engine.runner.plan import StepPlan
from longturn.engine.runner.pool import KVPool
from longturn.engine.runner.threads import let_threads_go
from longturn.engine.runner.whole import WholeModel, find_whole
from longturn.errors import ConfigError, ModelError

ATTENTION = "longturn"
# Families whose attention was compared with their own implementation, token by token.
TESTED_FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text")
BITS = {"model": WHOLE, "int8": 8, "int4": 4}
_WARM_UP_TOKENS = (1, 40, 600)
_TOUCHED_SLOTS = 8192
# What models of other kinds need and this attention does not give.
_REFUSED = ("sinks", "linear_attn", "mamba", "cross_attn")


class TorchRunner:
    """Loads a model from `folder` and computes steps of it.

    deterministic: every span is attended over KV gathered in one piece, so that results do not depend on where in the
    pool it lies. Raises ModelError for a model that cannot be run this way.

    native: use kernels of our own where they can be had; `runner.native` is what is used, or why not.

    weights: "model", or those within layers rounded to eight or four bits ("int8", "int4"; on the CPU in bfloat16).

    same_bits: whether in default mode a token's KV and logits are the same to the bit, however its prompt was cut,
    cached or batched (but for many requests behind a shared prompt: see GATHERED_TOKENS). Depends on the CPU, and is
    tried at loading.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        weights: str = "model",
        threads: int | None = None,
        deterministic: bool = False,
        native: bool = True,
    ) -> None:
        torch.set_num_threads(threads or os.cpu_count() or 1)
        self.device = _device(device)
        self._deterministic = deterministic
        wanted = _dtype(dtype, self.device)
        suited = self.device.type == "cpu" and wanted == torch.bfloat16
        model: Any = _read_plain(folder) if suited and native else None
        if model is None:
            model = _load(folder, wanted).to(self.device)
        self._model = model
        self._config = model.config.get_text_config()
        self.dtype = next(model.parameters()).dtype
        self._check(model)
        self.shape = self._shape(model)
        self.same_bits, self._filling = False, AS_THEY_COME
        self._whole: WholeModel | None = None
        self.native: Native | Unavailable = Unavailable("they are not asked for, or not for this device and type")
        _, kv_heads, dim = self._kv_dims()
        if suited and native:
            self.native = find(dim, _inputs(model))
        kernels = self.native if isinstance(self.native, Native) else None
        if kernels or (suited and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
            replace_layers(model, BITS[weights], kernels)
            share_embedding(model)
            own_memory(model)
            if kernels:
                self._whole = find_whole(model, kernels)
            if self._whole is not None and self._whole.in_parts:
                self.shape = replace(self.shape, layers=self._whole.n_layers)
            filling = AS_THEY_COME if kernels else find_filling(kv_heads, dim, torch.get_num_threads())
            self.same_bits = filling is not None and same_bits(model)
            self._filling = filling or AS_THEY_COME
        if weights != "model" and not any(isinstance(child, Layer) for child in model.modules()):
            raise ConfigError(
                "weights of few bits need bfloat16 on a CPU with AVX-512 or with kernels of our own, and a model of "
                "the families Llama, Mistral or Qwen: leave them as they are"
            )
        if weights == "int8" and not isinstance(self.native, Native):
            raise ConfigError(
                f"weights of eight bits need the native kernels, which are not there ({self.native}): "
                "use int4, or leave them as they are"
            )

    def allocate(self, slots: int, page_size: int) -> None:
        """Make the pool. Raises ConfigError when the device has no room for it."""
        try:
            self.pool = KVPool(*self._kv_dims(), slots, page_size, self.dtype, self.device)
        except (RuntimeError, MemoryError, OSError) as error:
            raise ConfigError(f"no room for a pool of {slots} tokens: set fewer device tokens ({error})") from error

    def warm_up(self, slots: int) -> None:
        """Compute a few steps, so that the first request does not wait for kernels to be made. For an empty pool.

        Also touches the beginning of the pool: a hit from disk after a restart would wait for fresh memory instead.
        After that another thread may compute.
        """
        self.pool.kv[:, :, :_TOUCHED_SLOTS].zero_()
        for n in _WARM_UP_TOKENS:
            if n <= slots:
                self.execute([Span(np.zeros(n, np.int32), 0, Runs([Run(0, n)]), logits=True, prompt=n > 1)])
        let_threads_go()
        give_back()

    @torch.inference_mode()
    def execute(self, spans: Sequence[Span]) -> Tensor:
        tokens = np.concatenate([span.tokens for span in spans]).astype(np.int64)
        positions = np.concatenate([np.arange(span.start, span.start + len(span.tokens)) for span in spans])
        ids, at = torch.from_numpy(tokens).to(self.device), torch.from_numpy(positions).to(self.device)
        plan = StepPlan(self.pool.kv, spans, in_place=not self._deterministic, filling=self._filling)
        if self.pool.ahead is not None:
            self.pool.ahead.reached(int(plan.new_slots.max()))
        if self._whole is not None and self._whole.takes(plan):
            return self._whole(ids, at, plan)
        ends = np.cumsum([len(span.tokens) for span in spans]) - 1
        outputs = self._model(
            input_ids=ids[None],
            position_ids=at[None],
            use_cache=False,
            logits_to_keep=torch.from_numpy(ends[[span.logits for span in spans]]).to(self.device),
            longturn_step=plan,
        )
        return outputs.logits[0]  # type: ignore[no-any-return]

    def _kv_dims(self) -> tuple[int, int, int]:
        config = self._config
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, dim

    def _shape(self, model: Any) -> ModelShape:
        config = self._config
        layers, _, dim = self._kv_dims()
        weights = {parameter.data_ptr(): parameter for parameter in model.parameters()}.values()
        n_embedding = config.vocab_size * config.hidden_size
        n_linear = sum(p.numel() for p in weights) - n_embedding * (0 if config.tie_word_embeddings else 1)
        return ModelShape(
            context=config.max_position_embeddings,
            vocab_size=config.vocab_size,
            token_bytes=KVPool.token_bytes(*self._kv_dims(), self.dtype),
            weight_bytes=sum(p.numel() * p.element_size() for p in weights),
            linear_flops=2.0 * n_linear,
            attention_flops=4.0 * layers * config.num_attention_heads * dim,
        )

    def _check(self, model: Any) -> None:
        names = {part for name, _ in model.named_modules() for part in name.split(".")}
        names |= {name.rsplit(".", 1)[-1] for name, _ in model.named_parameters()}
        for refused in _REFUSED:
            if refused in names:
                raise ModelError(
                    f"models of type {self._config.model_type} use {refused}, which this engine does not compute: "
                    f"families that are tested are {', '.join(TESTED_FAMILIES)}"
                )


def _read_plain(folder: Path) -> PlainCausalLM | None:
    """The model in `folder`, if it is plain and kernels of our own compute all of it."""
    config = plain_config(folder)
    if config is None:
        return None
    try:
        model = PlainCausalLM(config)
        whole = all(n_in % INPUTS == 0 for n_in in _inputs(model))
        if not whole or isinstance(find(config.head_dim, _inputs(model)), Unavailable):
            return None
        return model if model.read(folder) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError):
        return None  # transformers says what is wrong


def _load(folder: Path, dtype: torch.dtype) -> Any:
    """The model in `folder` as `transformers` computes it, but for its attention. Raises ModelError."""
    from transformers import AttentionInterface, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    AttentionInterface.register(ATTENTION, attend)
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=ATTENTION, local_files_only=True
        ).eval()  # type: ignore[no-untyped-call]
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        raise ModelError(f"cannot load the model in {folder}: {error}") from error


def _inputs(model: nn.Module) -> set[int]:
    return {child.in_features for child in model.modules() if isinstance(child, nn.Linear)}


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    available: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
    }
    if name in available and not available[name]():
        raise ConfigError(f"torch sees no {name} device here: use --device cpu")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float16 if device.type == "mps" else torch.bfloat16
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
