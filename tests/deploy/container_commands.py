"""What deployments start: is it a command of ours, and would it take these options?"""

import typer
from typer.main import get_command

from app.cli import cli
from app.settings import FOREIGN_VARIABLES, PREFIX, known_variables


def require_command(words: list[str]) -> None:
    """Fail unless the command line takes these words; nothing is run."""
    name, *arguments = words
    assert name == "epsilon-ledger", words
    command = get_command(cli)
    with command.make_context(name, [], resilient_parsing=True) as context:
        while isinstance(command, typer.core.TyperGroup):
            _, found, arguments = command.resolve_command(context, arguments)
            assert found is not None, words
            command = found
        with command.make_context(name, arguments, parent=context):
            pass


def unknown_settings(names: list[str]) -> list[str]:
    """Variables that are meant for the service and that nothing reads."""
    return [name for name in names if name.startswith(PREFIX) and name not in {*known_variables(), *FOREIGN_VARIABLES}]
