"""Commands that compare a file with a running server, apply it, and write such a file."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.commands.console import Json, print_result, require_reason

if TYPE_CHECKING:
    from app.provisioning.session import Outcome, Session

ERROR: Final = 2
"""Exit status of errors; 1 means that the server differs from the file (`--check`)."""


def apply(  # noqa: PLR0913 - one for each option
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="The organisation's YAML or JSON; -: stdin.")
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Show the changes and make none.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", metavar="", help="Change nothing; exit 1 if the server is not as the file describes."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Apply without asking.")] = False,
    confirm: Annotated[
        bool, typer.Option("--confirm", metavar="", help="Accept changes that lower protection.")
    ] = False,
    keys_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append the secrets of new API keys to this file (mode 600).")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Reason, recorded in the audit log.")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", metavar="", help="Print the JSON Schema of the file, for editors.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a running server as a file describes it: show the changes, ask, apply.

    The server is EPSILON_LEDGER_URL, the API key EPSILON_LEDGER_API_KEY. Nothing is ever deleted.
    """
    from app.provisioning import session as provisioning  # noqa: PLC0415 - schemas of the API take long to import

    if schema:
        typer.echo(json.dumps(provisioning.document_schema(), indent=2))
        return
    only_shows = dry_run or check
    file = _require_usable(file, reason, asks=not (only_shows or yes), as_json=as_json)
    name = "stdin" if str(file) == "-" else file.name
    try:
        with provisioning.open_session(_read(file), name) as session:
            found = session.changes
            if not as_json:
                typer.echo(f"Changes to {session.api.url} from {name}:\n\n{provisioning.changes_text(found)}")
            if only_shows or found.conflicts or not found.pending:
                if as_json:
                    typer.echo(json.dumps(provisioning.changes_facts(found)))
                if check:
                    raise typer.Exit(1 if found.changes or found.conflicts else 0)
                raise typer.Exit(ERROR if found.conflicts else 0)
            session.require_confirmed(confirm=confirm)
            if not yes:
                typer.confirm("\nApply these changes?", abort=True)
            _apply(session, reason or f"Applied from {name}.", keys_out, as_json=as_json)
    except provisioning.ProvisioningError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ERROR) from None


def export_config() -> None:
    """Write a running server's populations, budgets, policies, alert settings and API keys as a file for `apply`.

    The server is EPSILON_LEDGER_URL, the API key EPSILON_LEDGER_API_KEY. The file has no secrets.
    """
    from app.provisioning import session as provisioning  # noqa: PLC0415 - as above

    try:
        text, notes = provisioning.export_server()
    except provisioning.ProvisioningError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ERROR) from None
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(text, nl=False)


def _apply(session: "Session", reason: str, keys_out: Path | None, *, as_json: bool) -> None:
    """Apply changes and print each outcome; exit 2 if not all went well."""
    from app.provisioning import session as provisioning  # noqa: PLC0415 - as above

    outcomes: list[Outcome] = []

    def report(outcome: "Outcome") -> None:
        outcomes.append(outcome)
        if not as_json:
            typer.echo(provisioning.outcome_text(outcome))

    try:
        session.apply(reason, keys_out, report)
    finally:
        number, done = len(session.changes.pending), {provisioning.Result.DONE, provisioning.Result.PROPOSED}
        applied = sum(outcome.result in done for outcome in outcomes)
        text = f"\nApplied {applied} of {number} changes."
        if applied < number:
            text += " What is done stays done; apply the file again to go on."
        facts = provisioning.changes_facts(session.changes) | {
            "outcomes": list(map(provisioning.outcome_facts, outcomes))
        }
        print_result(as_json=as_json, text=text, facts=facts)
    if any(outcome.result is provisioning.Result.FAILED for outcome in outcomes):
        raise typer.Exit(ERROR)


def _require_usable(file: Path | None, reason: str | None, *, asks: bool, as_json: bool) -> Path:
    """Check options that depend on each other; return the file."""
    if file is None:
        raise typer.BadParameter("give the organisation's file: -f organisation.yaml", param_hint="--file")
    if reason is not None:
        require_reason(reason)
    if asks and (as_json or str(file) == "-" or not sys.stdin.isatty()):
        raise typer.BadParameter("there is no terminal to ask on: give --yes, or --dry-run", param_hint="--yes")
    return file


def _read(file: Path) -> bytes:
    """Read the file, or standard input."""
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}", param_hint="--file") from None
