"""`ModelProfile`: the figures of a model that decide what it costs, and what follows from them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(gt=0)]
Bytes = Annotated[float, Meta(gt=0)]
Dtype = Annotated[str, Meta(pattern="^(bf16|fp8)$")]


class MLA(Struct, frozen=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): KV is one latent vector and one rotary key."""

    q_lora_rank: Count
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count


class MoE(Struct, frozen=True, forbid_unknown_fields=True):
    """A mixture of experts: of `experts` in a layer each token takes `active`, and all take `shared` more.

    intermediate: of one expert; dense_layers: layers that have a plain MLP instead.
    """

    experts: Count
    active: Count
    intermediate: Count
    shared: int = 0
    dense_layers: int = 0

    def __post_init__(self) -> None:
        if self.active > self.experts:
            raise ValueError(f"a token cannot take {self.active} of {self.experts} experts")


class ModelProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder with grouped-query attention or MLA, and gated MLPs or a mixture of experts.

    name: what it is called on the command line; title: for people; context: most positions; tied: output head and
    embedding are one matrix; weight_bytes, kv_bytes: bytes of one parameter, and of one number of the KV cache; dtype:
    what the linear layers compute in ("bf16" or "fp8"); sources: where the numbers come from, by name.
    """

    name: str
    title: str
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate: Count
    vocab: Count
    context: Count
    tied: bool
    weight_bytes: Bytes
    kv_bytes: Bytes
    dtype: Dtype
    sources: dict[str, str]
    mla: MLA | None = None
    moe: MoE | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads is {self.kv_heads}: it must divide heads, which is {self.heads}")
        if self.moe is not None and self.moe.dense_layers > self.layers:
            raise ValueError(f"dense_layers is {self.moe.dense_layers}: there are {self.layers} layers")

    @property
    def token_bytes(self) -> int:
        """Bytes of KV per token."""
        mla = self.mla
        numbers = 2 * self.kv_heads * self.head_dim if mla is None else mla.kv_lora_rank + mla.qk_rope_head_dim
        return int(self.layers * numbers * self.kv_bytes)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert of one layer; 0 without experts."""
        return 0 if self.moe is None else 3 * self.hidden * self.moe.intermediate

    @property
    def routed_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.moe is None else self.layers - self.moe.dense_layers

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head, which is computed for a sequence's last token only."""
        return self.vocab * self.hidden

    @property
    def common_parameters(self) -> int:
        """Parameters of all layers that every token passes: all but the routed experts, the head and the embedding."""
        plain = 3 * self.hidden * self.intermediate * (self.layers - self.routed_layers)
        routed = 0
        if self.moe is not None:
            routed = (self.hidden * self.moe.experts + self.moe.shared * self.expert_parameters) * self.routed_layers
        norms = (2 * self.layers + 1) * self.hidden
        return self.layers * self._attention_parameters() + plain + routed + norms

    @property
    def active_parameters(self) -> int:
        """Parameters that compute one token, with the head and without the embedding."""
        routed = 0 if self.moe is None else self.moe.active * self.expert_parameters * self.routed_layers
        return self.common_parameters + routed + self.head_parameters

    @property
    def parameters(self) -> int:
        """All parameters."""
        routed = 0 if self.moe is None else self.moe.experts * self.expert_parameters * self.routed_layers
        return self.common_parameters + routed + self.head_parameters * (1 if self.tied else 2)

    def parameters_read(self, tokens: int) -> float:
        """Parameters that a step of so many tokens reads: each once, of experts those that any token takes.

        Premise: tokens choose experts evenly and independently.
        """
        read = float(self.common_parameters + self.head_parameters)
        if self.moe is not None:
            share = 1 - (1 - self.moe.active / self.moe.experts) ** tokens
            read += share * self.moe.experts * self.expert_parameters * self.routed_layers
        return read

    @property
    def pair_flops(self) -> float:
        """FLOPs of attention per token of a prompt and earlier token: queries times keys, weights times values."""
        if self.mla is None:
            return 4.0 * self.layers * self.heads * self.head_dim
        width = self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim + self.mla.v_head_dim
        return 2.0 * self.layers * self.heads * width

    @property
    def decode_pair_flops(self) -> float:
        """The same for a generated token. With MLA it attends to the latents themselves (weights absorbed)."""
        if self.mla is None:
            return self.pair_flops
        return 2.0 * self.layers * self.heads * (2 * self.mla.kv_lora_rank + self.mla.qk_rope_head_dim)

    @property
    def expand_flops(self) -> float:
        """FLOPs per earlier token that a chunk of a prompt looks back to: MLA makes keys and values of its latent."""
        if self.mla is None:
            return 0.0
        width = self.mla.qk_nope_head_dim + self.mla.v_head_dim
        return 2.0 * self.layers * self.mla.kv_lora_rank * self.heads * width

    def _attention_parameters(self) -> int:
        mla = self.mla
        if mla is None:
            return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        queries = mla.q_lora_rank * (self.hidden + self.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim))
        latent = self.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        expand = mla.kv_lora_rank * self.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return queries + latent + expand + self.heads * mla.v_head_dim * self.hidden
