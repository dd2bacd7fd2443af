"""`longturn lab calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    model: Annotated[str, typer.Option(help="A folder, a GGUF file, a hub id, or `demo`.")] = "demo",
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="profiles/local.toml beside the models")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, for a first look.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object; progress goes to stderr.")] = False,
) -> None:
    """Fit this machine's hardware profile to real steps of a model.

    Prints how well the fit foretells steps that it has not seen. Do nothing else on the machine meanwhile.
    """
    from itertools import chain

    import msgspec
    import numpy as np
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from longturn.engine.cost import profile_directory
    from longturn.lab.calibrate import calibrate, write_profile

    path = out or profile_directory() / "local.toml"
    result = calibrate(model, quick=quick, progress=lambda message: typer.secho(message, dim=True, err=True))
    write_profile(result.profile, path)
    errors = {
        kind: {"steps": len(found), "median": float(np.median(found)), "p95": float(np.quantile(found, 0.95))}
        for kind, found in {"all": [*chain(*result.errors.values())], **result.errors}.items()
    }
    if json:
        report = {
            "file": str(path),
            "held_out_errors": errors,
            "warnings": result.warnings,
            "provenance": result.provenance,
            "profile": result.profile,
        }
        typer.echo(msgspec.json.encode(report).decode())
        return
    table = Table("HELD-OUT STEPS", "NUMBER", "MEDIAN ERROR", "P95", box=box.SIMPLE_HEAD)
    for kind, error in errors.items():
        table.add_row(kind, str(error["steps"]), f"{error['median']:.1%}", f"{error['p95']:.1%}")
    console = Console(highlight=False)
    console.print(table)
    for warning in result.warnings:
        console.print(f"warning: {warning}", style="yellow")
    console.print(f"{result.provenance}\nwritten to {path}")
