"""The artifact store: contents come back as they were, whatever happens to the files."""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longturn.conversation.artifacts.handle import digest_of, handle_of
from longturn.conversation.artifacts.store import Artifacts
from longturn.errors import ArtifactError


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path / "artifacts")


def files(artifacts: Artifacts) -> list[Path]:
    return [path for path in artifacts.path.rglob("*") if path.is_file()]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.one_of(st.binary(max_size=2000), st.text(max_size=500), st.just("line\n" * 5000)))
def test_content_comes_back(artifacts: Artifacts, data: bytes | str) -> None:
    content = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    digest = artifacts.put(data)
    assert digest == digest_of(data) == hashlib.sha256(content).hexdigest()
    assert artifacts.get(digest) == content
    assert artifacts.range(digest, 3, 11) == content[3:11]
    assert digest in artifacts
    assert artifacts.find(handle_of(digest)) == digest


def test_equal_contents_are_one_file_that_other_programs_read(artifacts: Artifacts) -> None:
    text = "the same line\n" * 1000
    assert artifacts.put(text) == artifacts.put(text.encode())
    (path,) = files(artifacts)
    assert path.suffix == ".gz"
    assert path.stat().st_size < len(text) / 10
    assert gzip.decompress(path.read_bytes()) == text.encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(artifacts.path.stat().st_mode) == 0o700


def test_what_does_not_pack_is_kept_as_it_is(artifacts: Artifacts) -> None:
    data = os.urandom(5000)
    artifacts.put(data)
    (path,) = files(artifacts)
    assert path.read_bytes() == data


@pytest.mark.parametrize("data", [b"text " * 1000, os.urandom(4000)], ids=["packed", "plain"])
@pytest.mark.parametrize("harm", ["torn", "changed", "gone"])
def test_a_damaged_file_is_an_error_and_is_mended_by_the_same_content(
    artifacts: Artifacts, data: bytes, harm: str
) -> None:
    digest = artifacts.put(data)
    other = artifacts.put("another")
    (path,) = (path for path in files(artifacts) if path.name.startswith(digest))
    stored = path.read_bytes()
    if harm == "torn":
        path.write_bytes(stored[: len(stored) // 2])
    elif harm == "changed":
        path.write_bytes(stored[:-20] + bytes(byte ^ 1 for byte in stored[-20:]))
    else:
        path.unlink()
    with pytest.raises(ArtifactError, match="is not in" if harm == "gone" else "damaged"):
        artifacts.get(digest)
    assert artifacts.damaged() == ([] if harm == "gone" else [digest])
    assert artifacts.get(other) == b"another"
    assert artifacts.put(data) == digest
    assert artifacts.get(digest) == data
    assert artifacts.damaged() == []


def test_listing_shows_all_and_no_other_files(artifacts: Artifacts) -> None:
    assert list(artifacts) == []
    digests = sorted(artifacts.put(f"content {number}") for number in range(40))
    (artifacts.path / digests[0][:2] / "left behind.tmp").write_text("half of something")
    (artifacts.path / "notes.txt").write_text("of the user")
    assert list(artifacts) == digests


def test_a_handle_must_name_one(artifacts: Artifacts) -> None:
    digest = artifacts.put("content")
    twin = digest[:20] + "0" * 44
    (artifacts.path / digest[:2] / twin).write_bytes(b"")
    with pytest.raises(ArtifactError, match="stands for 2"):
        artifacts.find(handle_of(digest))
    assert artifacts.find(digest) == digest
    for handle, said in (
        ("artifact:123", "is no artifact"),
        ("../../etc/passwd", "is no artifact"),
        ("0" * 12, "there is no"),
    ):
        with pytest.raises(ArtifactError, match=said):
            artifacts.find(handle)


def test_binary_data_has_no_text(artifacts: Artifacts) -> None:
    assert artifacts.text(artifacts.put(b"PNG\0\1\2")) is None
    assert artifacts.text(artifacts.put(b"caf\xe9")) == "caf\ufffd"


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match="choose a folder"):
        Artifacts(tmp_path / "file" / "artifacts").put("x")


def _put_all(directory: Path, barrier: multiprocessing.synchronize.Barrier) -> None:
    artifacts = Artifacts(directory)
    barrier.wait()
    for number in range(60):
        artifacts.put(f"content {number} " * 200)


def test_many_processes_may_write_the_same(artifacts: Artifacts) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    writers = [context.Process(target=_put_all, args=(artifacts.path, barrier)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(list(artifacts)) == len(files(artifacts)) == 60
    assert artifacts.damaged() == []
