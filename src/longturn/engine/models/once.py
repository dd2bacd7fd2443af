"""Building a folder exactly once, whoever else tries and whenever a build is killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from longturn.errors import ModelError

PARTIAL = ".partial"
"""Suffix of a folder that is being built. A folder without it is complete."""


def build_once(target: Path, build: Callable[[Path], None], progress: Callable[[str], None]) -> Path:
    """Return `target`, after calling `build(folder)` for it if it does not exist yet.

    `build` fills an empty folder beside `target`, which takes the final name in one rename: a build that fails or is
    killed leaves no `target`, and what it did leave is removed by the next try. Processes that want the same folder
    wait for the first of them. Raises what `build` raises, and ModelError if the folder above cannot be made.
    """
    if target.is_dir():
        return target
    from filelock import FileLock, Timeout

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"{target.parent} cannot be made ({error.strerror}): set LONGTURN_CACHE to a folder"
        ) from error
    lock = FileLock(target.with_name(f"{target.name}.lock"))
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that prepares {target.name}")
        held = lock.acquire()
    with held:
        if target.is_dir():
            return target
        partial = target.with_name(target.name + PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            build(partial)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target
