"""Options, contexts and output that commands share."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from app.bootstrap import open_ledger
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import organisations
from app.service.auth.request_context import RequestContext, cli_context

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Organisation = Annotated[str, typer.Option("--org", help="The organisation's id or name.")]
Reason = Annotated[str, typer.Option(help="Reason, recorded in the audit log.")]


def print_result(*, as_json: bool, text: str, facts: Mapping[str, object]) -> None:
    """Print a command's result as text, or as JSON."""
    typer.echo(json.dumps(facts) if as_json else text)


def require_reason(reason: str) -> None:
    """Refuse a reason of white space."""
    if not reason.strip():
        raise typer.BadParameter("give a reason", param_hint="--reason")


@contextmanager
def open_organisation(organisation: str) -> Iterator[RequestContext]:
    """Open the current ledger; yield the command line's context for an organisation by id or name."""
    with open_ledger(migrated=False) as placements:
        db = placements.find_organisation(organisation).database
        with db.read(ALL_TENANTS) as tx:
            organisation_id = organisations.find_organisation(tx, organisation)
        assert organisation_id is not None, "it was found above"
        yield cli_context(db, organisation_id, db.clock.now())
