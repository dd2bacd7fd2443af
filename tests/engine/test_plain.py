"""Models that are read without `transformers` are the ones that it reads, to the bit; all others are left to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from longturn.cache import Run, Runs
from longturn.engine.models import load_tokenizer, resolve
from longturn.engine.runner import torch_runner
from longturn.engine.runner.contract import Span
from longturn.engine.runner.native import Unavailable, find
from longturn.engine.runner.plain import PlainCausalLM, plain_config
from longturn.engine.runner.torch_runner import TorchRunner
from longturn.errors import ModelError
from tests.tiny_model import VOCAB, Kind, build_tiny_model, build_tiny_tokenizer

TOKENS = np.random.default_rng(0).integers(3, VOCAB, 300, dtype=np.int32)
BIASED = {"attention_bias": True, "mlp_bias": True}


@pytest.fixture
def native() -> None:
    if isinstance(found := find(16), Unavailable):
        pytest.skip(f"no native kernels here: {found}")


def build(folder: Path, kind: Kind = "llama", *, tied: bool = False, **changes: Any) -> Path:
    """A tiny model whose config says something else."""
    build_tiny_model(folder, kind=kind, tied=tied)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    return folder


def answer(runner: TorchRunner) -> torch.Tensor:
    """Logits behind 300 tokens."""
    runner.allocate(1024, 16)
    return runner.execute([Span(TOKENS, 0, Runs([Run(0, len(TOKENS))]), logits=True, prompt=True)])


def check(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """That `folder` is read without transformers, as with it."""
    ours = TorchRunner(folder, device="cpu", dtype="bfloat16", **more)
    assert isinstance(ours._model, PlainCausalLM)
    with monkeypatch.context() as patch:
        patch.setattr(torch_runner, "plain_config", lambda folder: None)
        theirs = TorchRunner(folder, device="cpu", dtype="bfloat16", **more)
    assert not isinstance(theirs._model, PlainCausalLM)
    assert ours.shape == theirs.shape
    assert ours.same_bits == theirs.same_bits
    assert torch.equal(answer(ours), answer(theirs))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tied": True}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}),
        ("llama", {"rope_parameters": None, "rope_theta": 500000.0, "rope_scaling": None}),
        ("qwen2", {}),
        ("qwen3", {"tied": True}),
        ("mistral", {"sliding_window": None}),
    ],
)
def test_the_families(kind: Kind, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(build(tmp_path / kind, kind, **changes), monkeypatch)


@pytest.mark.usefixtures("native")
def test_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(tmp_path / "biased", **BIASED)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        weights[name.replace(".weight", ".bias")] = torch.randn(len(weights[name]))
    save_file(weights, file, {"format": "pt"})
    check(folder, monkeypatch)


@pytest.mark.usefixtures("native")
def test_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(tmp_path / "parts")
    weights = load_file(folder / "model.safetensors")
    files = {name: f"model-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(weights)}
    for file in set(files.values()):
        part = {name: weight for name, weight in weights.items() if files[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    check(folder, monkeypatch)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_of_few_bits(weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(build(tmp_path / weights), monkeypatch, weights=weights)


@pytest.mark.model
@pytest.mark.usefixtures("native")
def test_the_demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    check(resolve("demo").path, monkeypatch)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"architectures": ["LlamaModel"]}),
        ("llama", {"model_type": "cohere"}),
        ("llama", {"quantization_config": {"quant_method": "awq"}}),
        ("llama", {"num_key_value_heads": None}),
        ("llama", {"num_key_value_heads": 3}),
        ("llama", {"num_attention_heads": 0, "head_dim": None}),
        ("llama", {"num_hidden_layers": "2"}),
        ("llama", {"tie_word_embeddings": None}),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
        ("llama", {"partial_rotary_factor": 0.5}),
        ("llama", {"rope_parameters": None}),
        ("llama", {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("llama", {"rope_parameters": "default"}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 32}),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("qwen3", {"head_dim": None}),
        ("mistral", {"sliding_window": 64}),
        ("gemma2", {}),
    ],
)
def test_what_is_not_plain_is_left_to_transformers(kind: Kind, changes: dict[str, Any], tmp_path: Path) -> None:
    assert plain_config(build(tmp_path / kind, kind, **changes)) is None


def test_a_window_that_mistral_has_by_default_is_one(tmp_path: Path) -> None:
    config = build(tmp_path / "mistral", "mistral", sliding_window=None) / "config.json"
    assert plain_config(config.parent) is not None
    given = json.loads(config.read_text())
    del given["sliding_window"]
    config.write_text(json.dumps(given))
    assert plain_config(config.parent) is None


def test_a_folder_without_a_config_is_not_plain(tmp_path: Path) -> None:
    assert plain_config(tmp_path) is None
    (tmp_path / "config.json").write_text("[]")
    assert plain_config(tmp_path) is None


@pytest.mark.parametrize("change", ["missing", "more", "shape"])
def test_weights_that_differ_from_the_settings_are_left_to_transformers(change: str, tmp_path: Path) -> None:
    folder = build(tmp_path / change)
    file, name = folder / "model.safetensors", "model.layers.0.mlp.up_proj.weight"
    weights = load_file(file)
    one = weights[name] if change == "more" else weights.pop(name)
    if change != "missing":
        weights["another.weight" if change == "more" else name] = one[:1].clone()
    save_file(weights, file, {"format": "pt"})
    config = plain_config(folder)
    assert config is not None
    assert not PlainCausalLM(config).read(folder)


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    folder = build(tmp_path / "damaged")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match="cannot load the model"):
        TorchRunner(folder, device="cpu", dtype="bfloat16")


@pytest.mark.parametrize("changes", [{"vocab_size": 300.0}, {"vocab_size": 1 << 60}, {"head_dim": 7.5}])
def test_settings_that_make_no_model_are_left_to_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert torch_runner._read_plain(build(tmp_path / "odd", **changes)) is None


PROGRAM = """
import sys
from pathlib import Path
from longturn.engine.models import load_tokenizer
from longturn.engine.runner.torch_runner import TorchRunner
folder = Path(sys.argv[1])
TorchRunner(folder, device="cpu", dtype="bfloat16")
load_tokenizer(folder)
print(*sorted({"sympy", "transformers.modeling_utils", "torch.distributed.tensor"} & sys.modules.keys()))
"""


@pytest.mark.usefixtures("native")
def test_what_is_plain_brings_in_little(tmp_path: Path) -> None:
    folder = build(tmp_path / "llama")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# -- tokenizers ------------------------------------------------------------------------------------------------------


def alike(folder: Path) -> None:
    """That the tokenizer of `folder` is the one that AutoTokenizer makes by itself."""
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert type(ours) is type(theirs)
    assert ours.init_kwargs == theirs.init_kwargs
    assert ours.special_tokens_map == theirs.special_tokens_map
    text = "<|im_start|>user\nThe größte\tNumber: 12345 😀<|im_end|>"
    assert ours(text).input_ids == theirs(text).input_ids
    assert ours.chat_template == theirs.chat_template


@pytest.mark.parametrize("named", [None, "PreTrainedTokenizerFast", "LlamaTokenizerFast", "GPT2Tokenizer", "Unheard"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_tokenizers_are_those_of_transformers(named: str | None, kind: Kind, tmp_path: Path) -> None:
    folder = build(tmp_path / "one", kind)
    build_tiny_tokenizer().save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    given = json.loads(file.read_text())
    given.pop("tokenizer_class", None)
    file.write_text(json.dumps(given | ({} if named is None else {"tokenizer_class": named})))
    alike(folder)


@pytest.mark.model
def test_the_tokenizer_of_the_demo_model() -> None:
    alike(resolve("demo").path)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"put tokenizer\.json there"):
        load_tokenizer(tmp_path)
