"""Commands that create organisations, and list and lift quarantines."""

from typing import Annotated, Final

import typer

from app.bootstrap import open_ledger
from app.commands.common import Json, Organisation, Reason, organisation_context, print_result, require_reason
from app.service.auth import authentication
from app.service.auth.authentication import DEFAULT_PLACEMENT
from app.service.governance import proposals, quarantines
from app.service.idempotency import run_effect

_LIFT_HINT: Final = (
    "Two persons lift it when verification finds nothing any more: epsilon-ledger quarantine lift ACCOUNT"
)


def create_organisation(
    name: Annotated[str, typer.Argument(help="Unique, up to 100 characters.")],
    placement: Annotated[str, typer.Option(help="Placement of its database.")] = DEFAULT_PLACEMENT,
    *,
    as_json: Json = False,
) -> None:
    """Create an organisation and print its id."""
    with open_ledger() as placements:
        home = placements.named(placement).database
        organisation_id = authentication.create_organisation(
            home, name, home.clock.now(), placements.databases.values()
        )
    print_result(as_json=as_json, text=organisation_id, facts={"id": organisation_id, "name": name})


def list_quarantined(organisation: Organisation, *, as_json: Json = False) -> None:
    """List an organisation's quarantined accounts and the reasons."""
    with open_ledger(migrated=False) as placements:
        found = quarantines.list_quarantined(organisation_context(placements, organisation))
    text = "\n".join([*found.values(), _LIFT_HINT]) if found else "No account is quarantined."
    print_result(as_json=as_json, text=text, facts={"quarantined": dict(found)})


def lift_quarantine(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Id or path, such as mimic/icu-team.")],
    organisation: Organisation,
    reason: Reason,
    *,
    as_json: Json = False,
) -> None:
    """Approve the end of an account's quarantine, or propose it.

    Approval verifies the organisation first and fails while a discrepancy remains. The command line counts as one
    person: another person approves its proposals.
    """
    require_reason(reason)
    with open_ledger(migrated=False) as placements:
        context = organisation_context(placements, organisation)
        waiting = quarantines.find_open(context, account)
        if waiting is None:
            proposal = run_effect(context, quarantines.propose_lift(context, account, reason))
        else:
            proposal = proposals.approve(context, waiting.id, reason)
    facts = {"proposal": proposal.id, "account": proposal.account_id, "status": str(proposal.status)}
    proposed = f"Proposed as {proposal.id}. Another person approves it, on the page Approvals or with their key."
    print_result(as_json=as_json, text="The quarantine is lifted." if waiting else proposed, facts=facts)
