"""A GGUF file into a folder of bf16 safetensors, once. Serving packed GGUF weights is a hundred times slower on CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from longturn.errors import ModelError


def dequantise(gguf_file: Path, target: Path, progress: Callable[[str], None]) -> None:
    """Write config, bf16 safetensors, tokenizer and generation config of `gguf_file` into the folder `target`.

    Takes about 18 s for 135 million parameters on two cores, and holds the whole model in memory meanwhile. Raises
    ModelError for a file that is no GGUF, is damaged, or is of an architecture that transformers cannot read; then
    `target` may hold some of the files.
    """
    _check_magic(gguf_file)
    progress(f"unpacking {gguf_file.name} to bf16 (once)")
    try:
        _convert(gguf_file, target)
    except ImportError as error:
        raise ModelError(
            f"a GGUF file needs the engine's packages ({error}): pip install 'longturn[engine]'"
        ) from error
    except Exception as error:  # the readers raise nearly anything on bytes that they do not understand
        raise ModelError(
            f"{gguf_file} cannot be unpacked ({type(error).__name__}: {error}). It is damaged, of an architecture "
            "that transformers does not read from GGUF, or the disk is full: give --model a folder with config.json "
            "and *.safetensors instead"
        ) from error


def _check_magic(gguf_file: Path) -> None:
    try:
        with gguf_file.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{gguf_file} cannot be read ({error.strerror}): check the path given to --model") from error
    if magic != b"GGUF":
        raise ModelError(f"{gguf_file} is not a GGUF file (it starts with {magic!r}): download it again")


def _convert(gguf_file: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(gguf_file.parent), gguf_file.name
    with redirect_stderr(StringIO()):  # progress bars, some of which no setting of transformers turns off
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        # The file keeps the context length for the model alone, and the end of a chat turn apart from the end of text.
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.generation_config.eos_token_id = _end_tokens(gguf_file) or model.config.eos_token_id
        model.save_pretrained(str(target))
        tokenizer.save_pretrained(str(target))


def _end_tokens(gguf_file: Path) -> int | list[int] | None:
    """The token ids that end a generation (text, turn or message): one, several, or None if the file names none."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf_file)
    fields = [reader.get_field(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    found = list(dict.fromkeys(int(field.contents()) for field in fields if field is not None))
    return found[0] if len(found) == 1 else found or None
