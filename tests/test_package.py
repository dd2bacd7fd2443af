"""The package as a whole: cheap to import, arrows only downward, files of a readable size."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import longturn

ROOT = Path(longturn.__file__).parent
# Lowest first: a package imports only those before it. The modules at the root are under all of them.
HOUSE = (
    *("ledger", "store", "cache", "dialects", "explain", "engine"),
    *("conversation", "lab", "gateway", "serve", "cli", "pytest_plugin"),
)
LINES = 500
MODULES = sorted(ROOT.rglob("*.py"))

TIMER = """
import json, sys, time
began = time.perf_counter()
import longturn
print(json.dumps([time.perf_counter() - began, sorted(sys.modules)]))
"""


def test_import_is_fast_and_light() -> None:
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", TIMER])) for _ in range(3)]
    seconds = min(seconds for seconds, _ in runs)
    assert seconds < 0.3
    assert not {"torch", "transformers", "fastapi", "sqlalchemy"} & set(runs[0][1])


def test_every_package_is_in_the_house() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(HOUSE)


def test_arrows_point_downward() -> None:
    upward = [
        f"{name(path)} imports {imported}"
        for path in MODULES
        for imported in imports(path)
        if floor(imported) > floor(name(path))
    ]
    assert not upward


def test_no_import_cycle() -> None:
    known = {name(path) for path in MODULES}
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        # A package's __init__ runs before its modules do and re-exports them: not a circle that one can get lost in.
        own = name(path)
        graph[own] = {imported for imported in imports(path, at_import=True) if imported in known} - {own}
        if path.name != "__init__.py":
            graph[own] -= {own.rpartition(".")[0]}
    TopologicalSorter(graph).prepare()


def test_files_are_short() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {module: lines for module, lines in lengths.items() if lines > LINES} == {}


def name(path: Path) -> str:
    """The module in `path`."""
    parts = ("longturn", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor(module: str) -> int:
    """How far up in the house a module lives; the root's own modules lie under everything."""
    parts = module.split(".")
    return HOUSE.index(parts[1]) if len(parts) > 1 and parts[1] in HOUSE else -1


def imports(path: Path, *, at_import: bool = False) -> Iterator[str]:
    """Modules of ours that `path` imports; at_import: only what runs when it is imported itself."""
    nodes = _running(ast.parse(path.read_text())) if at_import else ast.walk(ast.parse(path.read_text()))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "longturn")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "longturn":
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if _is_module(inner) else node.module
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements but those in functions and under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _running(node)


def _is_module(module: str) -> bool:
    path = ROOT.joinpath(*module.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
