"""The command that shows a training being stopped."""

from importlib.util import find_spec
from typing import Final

import typer

from app.commands.console import Json

_NEEDED: Final = {"sklearn": "scikit-learn", "epsilon_ledger": "epsilon-ledger-client"}


def watch_training(*, as_json: Json = False) -> None:
    """Watch a real DP-SGD training stop at its budget."""
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        typer.echo(
            f"The demo needs {' and '.join(missing)}. In a checkout, `make demo` installs all that it needs; "
            "elsewhere: pip install 'epsilon-ledger[demo]'",
            err=as_json,
        )
        raise typer.Exit(1)
    # As for `openapi`: importing the application would slow the start of every command by a third.
    from app.demo.scenario import run_demo  # noqa: PLC0415 - as said

    raise typer.Exit(run_demo(as_json=as_json))
