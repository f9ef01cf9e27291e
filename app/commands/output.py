"""What commands say: a text for people, or JSON for programs."""

import json
from collections.abc import Mapping
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def print_result(*, as_json: bool, text: str, facts: Mapping[str, object]) -> None:
    """Print what a command did.

    Args:
        as_json: whether a program asks.
        text: for people.
        facts: for programs.
    """
    typer.echo(json.dumps(facts) if as_json else text)
