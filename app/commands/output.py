"""Output of commands: text, or JSON for programs."""

import json
from collections.abc import Mapping
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_result(*, as_json: bool, text: str, facts: Mapping[str, object]) -> None:
    """Print a command's result as text, or as JSON."""
    typer.echo(json.dumps(facts) if as_json else text)
