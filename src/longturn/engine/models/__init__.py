"""What `--model` accepts, and where it lies on this machine.

A name is resolved to a folder of `config.json`, safetensors and tokenizer, which is all that a runner needs to know.
Importing this package loads neither torch nor transformers.
"""

from longturn.engine.models.catalog import (
    ListedModel,
    LocalModel,
    ModelSource,
    cache_directory,
    list_models,
    resolve,
    source_of,
)
from longturn.engine.models.fingerprint import fingerprint
from longturn.engine.models.tokenizer import load_tokenizer

__all__ = [
    "ListedModel",
    "LocalModel",
    "ModelSource",
    "cache_directory",
    "fingerprint",
    "list_models",
    "load_tokenizer",
    "resolve",
    "source_of",
]
