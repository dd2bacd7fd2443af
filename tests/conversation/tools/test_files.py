"""Files inside a root, and nothing outside of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from longturn.conversation.parts import ToolCall, ToolResult
from longturn.conversation.tools.contract import Outcome, Tool, Toolbox
from longturn.conversation.tools.files import MOST_BYTES, file_tools
from longturn.conversation.tools.root import Root
from longturn.errors import ToolError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "a.py").write_text("import os\nprint(os)\n# end\n")
    (root / "sub" / "b.txt").write_text("Needle\nhay\nneedle again")
    (root / "sub" / "binary").write_bytes(b"\0needle")
    (root / ".git" / "config").write_text("needle")
    (root / "empty").write_text("")
    (tmp_path / "secret").write_text("needle: secret")
    (tmp_path / "root-too").mkdir()
    (tmp_path / "root-too" / "secret").write_text("secret")
    return root


@pytest.fixture
def box(folder: Path) -> Toolbox:
    return Toolbox(file_tools(Root(folder)))


async def call(box: Toolbox, tool: str, **arguments: object) -> ToolResult:
    return await box.run(ToolCall("c", tool, json.dumps(arguments)))


async def test_read(box: Toolbox):
    whole = await call(box, "read", path="a.py")
    assert whole == ToolResult("c", "import os\nprint(os)\n# end", "a.py")
    assert (await call(box, "read", path="./sub/../a.py")).resource == "a.py"
    part = await call(box, "read", path="a.py", line="2", lines=1)
    assert part.text == "print(os)\n[lines 2 to 2 of 3]"
    assert (await call(box, "read", path="empty")).text == ""
    assert "has 3 lines" in (await call(box, "read", path="a.py", line=4)).text


async def test_read_what_cannot_be_read(box: Toolbox, folder: Path):
    (folder / "large").write_bytes(b"x" * (MOST_BYTES + 1))
    os.mkfifo(folder / "pipe")
    for path in ("sub/binary", "large", "sub", "pipe", "missing", "a\0b", ""):
        result = await call(box, "read", path=path)
        assert result.error, path
        assert result.text


@pytest.mark.parametrize("tool", ["read", "list", "search"])
@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc/passwd", "sub/../../secret", "link", "links/secret", "link-to-link", "../root-too/secret"],
)
async def test_nothing_leads_outside(box: Toolbox, folder: Path, tool: str, path: str):
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "links").symlink_to(folder.parent)
    (folder / "link-to-link").symlink_to("link")
    more = {"text": "e"} if tool == "search" else {}
    result = await call(box, tool, path=path, **more)
    assert result.error
    assert "outside" in result.text
    assert "secret" not in result.text.replace(path, "")


async def test_links_inside_are_followed_and_loops_are_not(box: Toolbox, folder: Path):
    (folder / "alias").symlink_to("sub/b.txt")
    (folder / "loop").symlink_to("loop")
    (folder / "sub" / "up").symlink_to(folder)
    assert (await call(box, "read", path="alias")).resource == "sub/b.txt"
    assert (await call(box, "read", path="loop")).error
    found = await call(box, "search", text="needle")
    assert found.text.count("b.txt:1") == 1


async def test_a_link_that_takes_a_files_place_is_not_followed(folder: Path):
    root = Root(folder)
    path = root.find("a.py")
    path.unlink()
    path.symlink_to(folder.parent / "secret")
    with pytest.raises(ToolError):
        root.read(path, 100)


async def test_list(box: Toolbox):
    assert (await call(box, "list")).text.split("\n") == [".git/", "a.py", "empty", "sub/"]
    assert (await call(box, "list", path="sub")).text == "b.txt\nbinary"
    assert (await call(box, "list", path="a.py")).error


async def test_search(box: Toolbox):
    found = await call(box, "search", text="needle")
    assert found.text == "sub/b.txt:1: Needle\nsub/b.txt:3: needle again"
    assert (await call(box, "search", text="needle", files="*.py")).text == "[no line matches]"
    assert (await call(box, "search", text="hay", path="sub/b.txt")).text == "sub/b.txt:2: hay"
    assert "more lines match" in (await call(box, "search", text="needle", limit=1)).text
    assert (await call(box, "search", text="(")).text == "a.py:2: print(os)"


async def test_a_model_is_told_what_was_wrong(box: Toolbox):
    for arguments in ("[1]", "{", '{"path": 5}', '{"path": "a.py", "mode": "w"}', "{}", "[" * 100_000):
        result = await box.run(ToolCall("c", "read", arguments))
        assert result.error
        assert "argument" in result.text
    assert "use one of list, read, search" in (await call(box, "write")).text


def test_tools_are_in_order_and_have_one_name_each(box: Toolbox):
    assert [tool["function"]["name"] for tool in box.definitions] == ["list", "read", "search"]
    schema = box.definitions[1]["function"]["parameters"]
    assert schema["required"] == ["path"]
    assert "$ref" not in json.dumps(box.definitions)

    async def run(arguments: object) -> Outcome:
        return Outcome("")

    with pytest.raises(ToolError, match="both offer a tool 'x'"):
        Toolbox([Tool("x", "", {}, run), Tool("x", "", {}, run, "other")])


def test_a_root_must_be_a_folder(folder: Path):
    with pytest.raises(ToolError, match="no folder"):
        Root(folder / "a.py")
