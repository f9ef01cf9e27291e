"""Commands that list quarantined accounts and lift quarantines."""

from typing import Annotated, Final

import typer

from app.bootstrap import open_ledger
from app.commands.output import Json, print_result
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import organisations
from app.service.auth.request_context import RequestContext, cli_context
from app.service.governance import proposals, quarantines
from app.service.idempotency import run_effect
from app.service.placements import Placements

Organisation = Annotated[str, typer.Option("--org", help="The organisation's id or name.")]

_LIFT_HINT: Final = (
    "Two persons lift it when verification finds nothing any more: epsilon-ledger quarantine lift ACCOUNT"
)


def list_quarantined(organisation: Organisation, *, as_json: Json = False) -> None:
    """List an organisation's quarantined accounts and the reasons."""
    with open_ledger(migrated=False) as placements:
        found = quarantines.list_quarantined(_context(placements, organisation))
    text = "\n".join([*found.values(), _LIFT_HINT]) if found else "No account is quarantined."
    print_result(as_json=as_json, text=text, facts={"quarantined": dict(found)})


def lift_quarantine(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Id or path, such as mimic/icu-team.")],
    organisation: Organisation,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the audit log.")],
    *,
    as_json: Json = False,
) -> None:
    """Approve the end of an account's quarantine, or propose it.

    Approval verifies the organisation first and fails while a discrepancy remains. The command line counts as one
    person: another person approves its proposals.
    """
    if not reason.strip():
        raise typer.BadParameter("give a reason", param_hint="--reason")
    with open_ledger(migrated=False) as placements:
        context = _context(placements, organisation)
        waiting = quarantines.find_open(context, account)
        if waiting is None:
            proposal = run_effect(context, quarantines.propose_lift(context, account, reason))
        else:
            proposal = proposals.approve(context, waiting.id, reason)
    facts = {"proposal": proposal.id, "account": proposal.account_id, "status": str(proposal.status)}
    proposed = f"Proposed as {proposal.id}. Another person approves it, on the page Approvals or with their key."
    print_result(as_json=as_json, text="The quarantine is lifted." if waiting else proposed, facts=facts)


def _context(placements: Placements, organisation: str) -> RequestContext:
    db = placements.find_organisation(organisation).database
    with db.read(ALL_TENANTS) as tx:
        owner = organisations.find_organisation(tx, organisation)
    assert owner is not None, "it was found above"
    return cli_context(db, owner, db.clock.now())
