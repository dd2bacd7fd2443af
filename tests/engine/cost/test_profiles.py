"""Profiles: what follows from a model's figures, and files that are good, missing or malformed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from longturn.engine.cost import (
    CostModel,
    ModelProfile,
    list_profiles,
    load_hardware_profile,
    load_model_profile,
    profile_directory,
)
from longturn.engine.runner.torch_runner import TorchRunner
from longturn.errors import ConfigError
from tests.tiny_model import VOCAB, Kind

# (billions of parameters, billions of them active with the embedding's row neglected, bytes of KV per token).
PUBLISHED = {
    "llama-3.1-8b": (8.03, 7.5, 131_072),
    "llama-3.1-70b": (70.6, 69.5, 327_680),
    "qwen3-8b": (8.19, 7.57, 147_456),
    "qwen3-32b": (32.8, 32.0, 262_144),
    "qwen3-30b-a3b": (30.5, 3.04, 98_304),
    "deepseek-v3": (671, 36.6, 70_272),
    "smollm2-135m": (0.1345, 0.1345, 23_040),
}
# Fields of a hardware profile that are no numbers of their own.
UNSOURCED = {"name", "title", "links", "sources", "calibration"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGTURN_CACHE", str(tmp_path / "cache"))


def test_every_model_has_the_size_that_is_published() -> None:
    assert set(list_profiles()["models"]) == set(PUBLISHED)
    for name, (parameters, active, token_bytes) in PUBLISHED.items():
        profile = load_model_profile(name)
        assert profile.name == name
        assert profile.parameters / 1e9 == pytest.approx(parameters, rel=5e-3), name
        assert profile.active_parameters / 1e9 == pytest.approx(active, rel=5e-3), name
        assert profile.token_bytes == token_bytes
        assert set(profile.sources) == {"architecture", "precision"}


def test_every_number_of_hardware_has_a_source() -> None:
    names = list_profiles()["hardware"]
    assert {"h100-sxm", "h200-sxm", "a100-80gb", "l4", "cpu-2core"} <= set(names)
    for name in names:
        profile = load_hardware_profile(name)
        numbers = {*profile.__struct_fields__} - UNSOURCED | {f"links.{link}" for link in profile.links}
        assert set(profile.sources) == numbers, name
        assert {"device-host", "host-disk", "network"} <= set(profile.links)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_shape_is_the_torch_runners(tiny: Callable[[Kind], Path], kind: Kind) -> None:
    profile = ModelProfile(
        name="tiny",
        title="tiny",
        layers=2,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=128,
        vocab=VOCAB,
        context=2048,
        tied=False,
        weight_bytes=4,
        kv_bytes=4,
        dtype="bf16",
        sources={},
    )
    real = TorchRunner(tiny(kind), dtype="float32", device="cpu", threads=1).shape
    modelled = CostModel(profile, load_hardware_profile("cpu-2core")).shape
    # Qwen2 has biases too, which the profile neglects.
    near = 0 if kind == "llama" else 1e-2
    assert modelled.linear_flops == pytest.approx(real.linear_flops, rel=near)
    assert modelled.weight_bytes == pytest.approx(real.weight_bytes, rel=near)
    assert (modelled.attention_flops, modelled.token_bytes) == (real.attention_flops, real.token_bytes)
    assert (modelled.context, modelled.vocab_size) == (real.context, real.vocab_size)


def test_a_file_of_ones_own_is_loaded_by_path_and_named_after_it(tmp_path: Path) -> None:
    copy = tmp_path / "mine.toml"
    copy.write_text(text("models/qwen3-8b").replace("layers = 36", "layers = 18"))
    profile = load_model_profile(copy)
    assert (profile.name, profile.layers) == ("mine", 18)
    assert profile.token_bytes == load_model_profile("qwen3-8b").token_bytes / 2


def test_profiles_of_this_machine_are_found_by_name() -> None:
    profile_directory().mkdir(parents=True)
    (profile_directory() / "local.toml").write_text(text("hardware/l4"))
    assert "local" in list_profiles()["hardware"]
    assert load_hardware_profile("local").title == load_hardware_profile("l4").title


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"no model profile 'gpt-9'.*deepseek-v3, llama"):
        load_model_profile("gpt-9")
    with pytest.raises(ConfigError, match=r"no hardware profile 'local'.*h100-sxm.*longturn lab calibrate"):
        load_hardware_profile("local")
    with pytest.raises(ConfigError, match=r"no model profile '.*absent\.toml'"):
        load_model_profile("absent.toml")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("layers = 48\n", "", "`layers`"),
        ("layers = 48", 'layers = "many"', r"\$\.layers"),
        ("layers = 48", "layers = 0", r"\$\.layers"),
        ("layers = 48", "layers = 48\nlayer = 2", "`layer`"),
        ("active = 8", "active = 8\nshare = 1", "`share`"),
        ("active = 8", "active = 800", "800 of 128 experts"),
        ("kv_heads = 4", "kv_heads = 5", "kv_heads is 5"),
        ('dtype = "bf16"', 'dtype = "int3"', r"\$\.dtype"),
        ("layers = 48", "layers = ", "not TOML.*line 2"),
    ],
)
def test_a_malformed_file_names_the_field(tmp_path: Path, old: str, new: str, named: str) -> None:
    good = text("models/qwen3-30b-a3b")
    assert old in good
    bad = tmp_path / "bad.toml"
    bad.write_text(good.replace(old, new))
    with pytest.raises(ConfigError, match=rf"bad\.toml.*{named}"):
        load_model_profile(bad)


def test_hardware_needs_a_peak_in_bf16(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(text("hardware/a100-80gb").replace("bf16 = ", "fp64 = "))
    with pytest.raises(ConfigError, match="flops must name bf16"):
        load_hardware_profile(bad)


def text(name: str) -> str:
    """A packaged profile as it stands."""
    import longturn.engine.cost

    return (Path(longturn.engine.cost.__file__).parent / "profiles" / f"{name}.toml").read_text()
