"""Fills the generated blocks of README.md and docs/*.md.

    python docs/build.py            write the blocks anew
    python docs/build.py --check    exit with 1 and show the difference if one is stale
    python docs/build.py PAGE ...   only those of these pages
    python docs/build.py --demo     first run `longturn demo` (a minute) and keep what it prints in docs/demo.txt

A block lies between `<!-- generated: NAME -->` and `<!-- end -->`. NAME is `help`, `help COMMAND`, `run ARGUMENTS`
(what `longturn ARGUMENTS` prints, in a folder that all blocks share), `demo` (from docs/demo.txt), `bench` (from
docs/figures.json, see `bench` below) or `mechanisms` (of `longturn explain`).
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
TRANSCRIPT = DOCS / "demo.txt"
FIGURES = DOCS / "figures.json"
BLOCK = re.compile(r"(?P<begin><!-- generated: (?P<name>[^>]+?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
FOLDER = tempfile.TemporaryDirectory(prefix="longturn-docs-")
PROGRAM = [sys.executable, "-c", "from longturn.cli import app; app(prog_name='longturn')"]


def filled(page: str) -> str:
    """The page with every block made anew."""
    return BLOCK.sub(lambda match: f"{match['begin']}{block(match['name'])}\n{match['end']}", page)


def block(name: str) -> str:
    """The content of the block called `name`."""
    match name.split():
        case ["help", *command]:
            return fenced(output([*command, "--help"], columns=100))
        case ["run", *command]:
            return fenced(f"$ longturn {' '.join(command)}\n{output(command, columns=100)}")
        case ["demo"]:
            return fenced(TRANSCRIPT.read_text())
        case ["bench"]:
            return bench()
        case ["mechanisms"]:
            return mechanisms()
    raise SystemExit(f"no block is called {name!r}: use help, help COMMAND, run ARGUMENTS, demo, bench or mechanisms")


def bench() -> str:
    """The tables of docs/figures.json: {"note": text, "tables": [{"title", "columns": [...], "rows": [[...]]}]}."""
    if not FIGURES.exists():
        return "No figures have been recorded yet."
    figures = json.loads(FIGURES.read_text())
    parts = [figures["note"]]
    for table in figures["tables"]:
        columns = table["columns"]
        lines = [row(columns), row(["---", *["---:"] * (len(columns) - 1)]), *map(row, table["rows"])]
        parts.append("\n".join([f"**{table['title']}**", "", *lines]))
    return "\n\n".join(parts)


def mechanisms() -> str:
    """What `longturn explain` can name, and what mends it."""
    from longturn.explain.table import FIXES

    return "\n".join(
        [row(["mechanism", "to mend it"]), row(["---", "---"]), *(row([f"`{m}`", f]) for m, f in FIXES.items())]
    )


def row(cells: list[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def fenced(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"```text\n{lines.strip()}\n```"


def output(arguments: list[str], *, columns: int) -> str:
    """What `longturn` prints for `arguments`, in plain text of a fixed width, whatever this terminal is like."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LONGTURN_CACHE")}
    plain = {"COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1", "PYTHONUTF8": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=kept | plain,
        cwd=FOLDER.name,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        check=True,
    ).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, metavar="PAGE")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--demo", action="store_true", help="record the demo anew")
    wanted = parser.parse_args()
    if wanted.demo:
        TRANSCRIPT.write_text(output(["demo"], columns=80), encoding="utf-8")
    stale = False
    for path in wanted.pages:
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if before == after:
            continue
        if wanted.check:
            stale = True
            lines = (before.splitlines(keepends=True), after.splitlines(keepends=True))
            sys.stdout.writelines(difflib.unified_diff(*lines, str(path), f"{path} (generated)"))
        else:
            path.write_text(after, encoding="utf-8")
    if stale:
        print("Generated blocks are stale: run `make docs`.", file=sys.stderr)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
