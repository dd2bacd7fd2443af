"""Longturn beside llama.cpp and vLLM, measured by one client in one run.

.venv/bin/python -m bench.peers --setup            # once: builds and installs the peers, in a folder of their own
.venv/bin/python -m bench.peers --quick            # shows in minutes that everything works; no figures
.venv/bin/python -m bench.peers --json out.json --html out.html
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.figures import processor
from bench.peers import chart, floors, page, report, table
from bench.peers.launch import LAUNCHES
from bench.peers.places import LLAMACPP, VLLM, Places, default_folder
from bench.peers.run import Run
from bench.peers.setup import SETUPS
from bench.peers.workloads import table as workloads_table
from longturn.engine.models import resolve
from longturn.errors import LongturnError

MOST_REPEATS = 100


def main(argv: list[str] | None = None) -> int:
    """0 when everything was measured, 1 when not, 2 for wrong arguments."""
    args = parse(argv)
    console = Console(width=max(Console().width, 200), soft_wrap=True)
    began = time.perf_counter()

    def say(text: str) -> None:
        console.print(f"{time.perf_counter() - began:6.0f} s  {text}", markup=False, highlight=False)

    places = Places(args.folder, resolve("demo").path, args.bits)
    ready = [engine for engine in args.peers if engine not in SETUPS or set_up(engine, places, say, args.jobs)]
    if args.setup:
        return 0 if ready == args.peers else 1
    known = workloads_table(quick=args.quick)
    chosen = [workload for name, workload in known.items() if name in args.workloads]
    say("measuring the machine itself")
    measured = floors.measure(places.model)
    say(f"  {measured.flops / 1e9:,.0f} GFLOP/s in bf16 products, {measured.bandwidth / 1e9:.1f} GB/s read")
    run = Run(places, ready, chosen, args.repeats, args.seed, began + args.minutes * 60, say)
    # Whoever ends this run ends its servers: SIGTERM is taken like ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(run.all())
    except KeyboardInterrupt:
        run.results.cut = "interrupted: what was measured before stands here"
    found = report.rows(run.results, chosen, measured)
    weights = sum(file.stat().st_size for file in places.model.glob("*.safetensors"))
    table.show(console, found, run.results, ready, weights)
    write(args, found, run, facts(args, measured))
    whole = ready == args.peers and not run.results.cut and not run.results.troubles
    return 0 if whole else 1


def set_up(engine: str, places: Places, say: Any, jobs: int) -> bool:
    """Whether it is there, built now if it was not."""
    try:
        SETUPS[engine](places, say, jobs)
    except LongturnError as error:
        say(f"{engine} cannot be set up and is left out: {error}")
        return False
    return True


def facts(args: argparse.Namespace, measured: floors.Floors) -> dict[str, Any]:
    """What one must know beside the figures."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": processor(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "releases": {"llamacpp": LLAMACPP, "vllm": VLLM},
        "repeats": args.repeats,
        "bits": args.bits,
        "seed": args.seed,
        "quick": args.quick,
        "measured": {"flops_per_s": measured.flops, "bytes_per_s": measured.bandwidth},
    }


def write(args: argparse.Namespace, found: list[report.Row], run: Run, known: dict[str, Any]) -> None:
    """The files that were asked for."""
    note = f"{known['date'][:10]}, {known['cpus']} cores of {known['machine']}, {args.repeats} interleaved repeats."
    if args.bits < 16:
        note += f" Weights of {args.bits} bits."
    if args.json:
        args.json.write_text(json.dumps(report.as_json(found, run.results, known), indent=1) + "\n", encoding="utf-8")
    if args.html:
        args.html.write_text(chart.html(found, note), encoding="utf-8")
    if args.docs:
        page.write(args.docs, found, run.results, run.engines, note)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Exits with status 2 for what cannot be."""
    known = list(workloads_table(quick=False))
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def some_of(choices: list[str]) -> Any:
        def parsed(text: str) -> list[str]:
            names = text.split(",")
            if unknown := [name for name in names if name not in choices]:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(choices)}")
            return [name for name in choices if name in names]

        return parsed

    add = parser.add_argument
    add("--setup", action="store_true", help="set up the peers and stop")
    add("--peers", type=some_of(list(LAUNCHES)), default=list(LAUNCHES), help="comma-separated; default all, ours too")
    add(
        "--bits",
        type=int,
        choices=(16, 8),
        default=16,
        help="of the weights; 8 without vLLM, which rounds none on a CPU",
    )
    add("--workloads", type=some_of(known), default=known, help=f"comma-separated; default all: {', '.join(known)}")
    add("--repeats", type=int, default=5, help="interleaved between the engines (default 5)")
    add("--quick", action="store_true", help="small workloads: to see that everything works, not for figures")
    add("--minutes", type=float, default=60, help="stop measuring after so long (default 60)")
    add("--seed", type=int, default=int(time.time()), help="of the prompts (default: the clock)")
    add("--folder", type=Path, default=default_folder(), help="where the peers live (default %(default)s)")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once (default: all cores)")
    add("--json", type=Path, help="write every value here")
    add("--html", type=Path, help="write a page with a chart per workload here")
    add("--docs", type=Path, help="write peers.md, and a chart per workload, into this folder")
    args = parser.parse_args(argv)
    if args.bits < 16:
        args.peers = [engine for engine in args.peers if engine != "vllm"]
    if not 1 <= args.repeats <= MOST_REPEATS:
        parser.error(f"--repeats must be 1 to {MOST_REPEATS}")
    if args.minutes <= 0 or args.jobs < 1:
        parser.error("--minutes and --jobs must be above 0")
    for path in filter(None, (args.json, args.html)):
        if not path.resolve().parent.is_dir():
            parser.error(f"{path}: there is no such folder; make it first")
    return args


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted while setting up: the same command goes on from here")
