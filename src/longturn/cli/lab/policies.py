"""`longturn lab policies`."""

from __future__ import annotations

from typing import Annotated

import typer


def policies(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List the cache policies with their options and defaults."""
    import dataclasses

    import msgspec
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from longturn.cache.policies.registry import POLICIES

    if json:
        listed = {
            name: {
                "models": policy.models,
                "options": {
                    field.name: {"default": field.default, "help": field.metadata["help"]}
                    for field in dataclasses.fields(policy.options)
                },
            }
            for name, policy in POLICIES.items()
        }
        typer.echo(msgspec.json.format(msgspec.json.encode(listed)).decode())
        return
    table = Table("POLICY", "MODELS", "OPTIONS AND DEFAULTS", box=box.SIMPLE_HEAD)
    for name, policy in POLICIES.items():
        options = [f"{field.name}={_text(field.default)}" for field in dataclasses.fields(policy.options)]
        table.add_row(name, policy.models, "\n".join(options))
    console = Console()
    console.print(table)
    console.print("Use: --policy NAME or NAME:key=value,key=value.", style="dim", highlight=False)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
