"""The tokenizer of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longturn.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in `folder`, as `transformers` makes it. Raises ModelError if there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, config=_config(folder), local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(f"no tokenizer can be loaded from {folder}: put tokenizer.json there ({error})") from error


def _config(folder: Path) -> PreTrainedConfig | None:
    """What AutoTokenizer asks of a config where the tokenizer's class is named; None where it has to read all of it.

    The config class of any model brings half of `transformers` and sympy with it: a second, and sixty megabytes.
    """
    from transformers import PreTrainedConfig

    try:
        named = json.loads((folder / "tokenizer_config.json").read_bytes())
        given = json.loads((folder / "config.json").read_bytes())
        kind = given["model_type"]
        if not named.get("tokenizer_class") or "auto_map" in named or "auto_map" in given:
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    asked = {name: given[name] for name in ("model_name", "tokenizer_class") if name in given}
    config = PreTrainedConfig(**asked)
    config.name_or_path = str(folder)
    config.model_type = kind  # type: ignore[misc]  # of the class, elsewhere
    return config
