"""A model profile from the `config.json` that lies beside a model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from longturn.engine.cost.model_profile import MLA, ModelProfile, MoE
from longturn.errors import ConfigError


def profile_of_folder(folder: Path, number_bytes: float = 2.0) -> ModelProfile:
    """Read a model's figures from `folder`/config.json, in the names that transformers gives them.

    number_bytes: of a parameter and of a number of KV, as the model is run. Raises ConfigError when there is no such
    file, or a figure is missing or not what it should be.
    """
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return msgspec.convert(_figures(config, folder.name, number_bytes), ModelProfile)
    except KeyError as error:
        raise ConfigError(f"{file} does not name {error}: give a profile in a .toml file instead") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as a model's configuration: {error}") from error


def _figures(config: dict[str, Any], name: str, number_bytes: float) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    return {
        "name": name,
        "title": name,
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "intermediate": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "context": config["max_position_embeddings"],
        "tied": config.get("tie_word_embeddings", False),
        "weight_bytes": number_bytes,
        "kv_bytes": number_bytes,
        "dtype": "bf16",
        "sources": {"architecture": f"config.json of {name}", "precision": "as it is run"},
        "mla": _mla(config) if config.get("kv_lora_rank") else None,
        "moe": _moe(config) if config.get("num_experts_per_tok") else None,
    }


def _mla(config: dict[str, Any]) -> dict[str, Any]:
    return {field: config[field] for field in MLA.__struct_fields__}


def _moe(config: dict[str, Any]) -> dict[str, Any]:
    figures = {
        "experts": config.get("num_experts") or config.get("n_routed_experts") or config["num_local_experts"],
        "active": config["num_experts_per_tok"],
        "intermediate": config.get("moe_intermediate_size") or config["intermediate_size"],
        "shared": config.get("n_shared_experts") or 0,
        "dense_layers": config.get("first_k_dense_replace") or 0,
    }
    assert set(figures) == set(MoE.__struct_fields__)
    return figures
