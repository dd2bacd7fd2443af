"""`longturn doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longturn.engine.doctor import Check


def doctor(
    model: Annotated[str, typer.Option(help="A folder, a GGUF file, a hub id, or `demo`.")] = "demo",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16, float16 or float32, for both modes.",
            show_default="float32 in the default mode, the model's usual 16 bits in the deterministic one",
        ),
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Test the deterministic mode only, which must be exact to the bit.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object; progress goes to stderr.")] = False,
) -> None:
    """Check this machine, and that an answer from the cache is the answer without it.

    The same prompts are computed cold and served from device, host and disk, and compared.

    The exit code is 1 if any check fails.
    """
    import msgspec

    from longturn.engine.doctor import examine

    checks: list[Check] = []
    for check in examine(
        model,
        device=device,
        dtype=dtype,
        deterministic_only=deterministic,
        progress=lambda message: typer.secho(message, dim=True, err=True),
    ):
        checks.append(check)
        mark, colour = ("ok  ", "green") if check.ok else ("FAIL", "red")
        typer.echo(f"{typer.style(mark, fg=colour)} {check.name}: {check.detail}", err=json)
    ok = all(check.ok for check in checks)
    if json:
        typer.echo(msgspec.json.encode({"ok": ok, "checks": [check.to_dict() for check in checks]}))
    if not ok:
        raise typer.Exit(1)
