"""`longturn models`."""

from __future__ import annotations

from typing import Annotated

import typer


def models(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """List the models that are ready on this machine."""
    import msgspec
    from rich import box
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    from longturn.engine.models import list_models

    listed = list_models()
    if json:
        fields = ("name", "source", "path", "ready", "bytes")
        rows = [{field: getattr(model, field) for field in fields} for model in listed]
        typer.echo(msgspec.json.format(msgspec.json.encode(rows, enc_hook=str)).decode())
        return
    table = Table("MODEL", "SOURCE", "SIZE", "FOLDER", box=box.SIMPLE_HEAD)
    for model in listed:
        table.add_row(
            model.name, model.source, decimal(model.bytes) if model.ready else "not fetched yet", str(model.path)
        )
    console = Console()
    console.print(table)
    console.print(
        "--model also takes a folder, a GGUF file or a hub id such as org/name.", style="dim", highlight=False
    )
