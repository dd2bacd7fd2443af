"""Profiles read from a model's own config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from longturn.engine.cost import ModelProfile, load_model_profile
from longturn.engine.cost.config import profile_of_folder
from longturn.errors import ConfigError

DENSE = {
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
MIXTURE = DENSE | {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
LATENT = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "head_dim": 192,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(("config", "name"), [(DENSE, "qwen3-8b"), (MIXTURE, "qwen3-30b-a3b"), (LATENT, "deepseek-v3")])
def test_figures_are_those_of_the_packaged_profile(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    known = load_model_profile(name)
    # As it is run here: in 16 bits.
    expected = msgspec.structs.replace(known, weight_bytes=2.0, dtype="bf16", name="", title="", sources={})
    found = msgspec.structs.replace(profile(tmp_path, config), name="", title="", sources={})
    assert found == expected


def test_what_a_config_leaves_out_follows_from_the_rest(tmp_path: Path) -> None:
    left_out = {key: value for key, value in DENSE.items() if key not in ("num_key_value_heads", "head_dim")}
    found = profile(tmp_path, left_out, 4.0)
    assert (found.kv_heads, found.head_dim, found.token_bytes) == (32, 128, 2 * 36 * 32 * 128 * 4)
    assert found.name == tmp_path.name


def test_a_models_folder_is_a_profile(tmp_path: Path) -> None:
    found = profile(tmp_path, DENSE)
    assert load_model_profile(tmp_path) == load_model_profile(str(tmp_path)) == found


def test_a_config_that_lacks_a_figure_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json does not name 'vocab_size'"):
        profile(tmp_path, {key: value for key, value in DENSE.items() if key != "vocab_size"})
    with pytest.raises(ConfigError, match=r"\$\.layers"):
        profile(tmp_path, DENSE | {"num_hidden_layers": "many"})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        profile_of_folder(tmp_path)


def profile(folder: Path, config: dict[str, Any], number_bytes: float = 2.0) -> ModelProfile:
    (folder / "config.json").write_text(json.dumps(config))
    return profile_of_folder(folder, number_bytes)
