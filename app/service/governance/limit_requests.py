"""Requests of trainers for a higher limit, which another person decides."""

from collections.abc import Sequence

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.errors import InvalidInputError, RunStateConflictError
from app.ledger.filter.limits import Limit
from app.ledger.governance.limit_changes import is_lowered, is_raised
from app.ledger.governance.proposals import Proposal
from app.ledger.pages import PageRequest
from app.ledger.permissions import Permission
from app.ledger.runs.decisions import DecisionFilter, DecisionOutcome
from app.ledger.runs.run import TERMINAL
from app.persistence.repositories import accounts, decisions, runs
from app.service.accounts.lookup import missing_account_error
from app.service.accounts.metadata import require_unarchived
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.governance.limit_changes import LIMITS, check_limit_change, find_limit


@use_case(Permission.RUN_MANAGE)
def request_limit(
    tx: Connection, context: RequestContext, run_id: str, account: str | None, limit: Limit, reason: str
) -> Proposal:
    """Propose to raise a limit that a run is charged to, for another person to decide.

    The account, by id or path, is on the run's path; None: the one that refused last. The run is in the caller's scope,
    but the account may lie above it: to ask changes nothing. A request that the caller has made already is returned:
    of several limits, some may have been requested before an error.

    Raises:
        InvalidInputError: the account is not charged by the run, none has refused it, the limit is not raised, or it
            waits for an approval already.
        AccountArchivedError: the account is archived.
        RunStateConflictError: it is the run's own limit, and the run has ended.
        Also those of `check_limit_change`.
    """
    charged = accounts.path_of(tx, context.organisation_id, run_id)
    if not charged or charged[-1].account.kind is not AccountKind.RUN:
        raise missing_account_error(AccountKind.RUN, run_id)
    context.require_scope([record.account.id for record in charged])
    found = _charged_account(tx, context, charged, account)
    require_unarchived(tx, context, found.account.id)
    run = runs.get(tx, context.organisation_id, run_id)
    if found is charged[-1] and run.status in TERMINAL:
        raise RunStateConflictError(
            f"The run is {run.status} and takes no more steps under a limit of its own. Register another run.",
            run_status=str(run.status),
        )
    path = accounts.path_of(tx, context.organisation_id, found.account.id)
    before = find_limit(tx, context, path)
    present = before.value
    if is_lowered(present, limit) or not is_raised(present, limit):
        raise InvalidInputError(
            f"`limit` is {limit}, and {before.path} has {present}. Request a higher one in the same unit."
        )
    check_limit_change(tx, context, before, limit)
    return LIMITS.propose(tx, context, before, limit, reason, run=run_id)


def _charged_account(
    tx: Connection, context: RequestContext, charged: Sequence[AccountRecord], account: str | None
) -> AccountRecord:
    """Find an account among those that a run charges; None: the one that refused last."""
    wanted = account
    if wanted is None:
        refused = DecisionFilter(run_id=charged[-1].account.id, outcome=DecisionOutcome.REFUSED)
        last = next(iter(decisions.page(tx, context.organisation_id, refused, PageRequest(1)).items), None)
        if last is None:
            raise InvalidInputError("Nothing was refused to this run. Send `account`: whose limit is to be raised.")
        wanted = last.decision.binding_account_id
    for record in charged:
        if wanted in {record.account.id, record.account.path} and record.account.limit is not None:
            return record
    limited = ", ".join(record.account.path for record in charged if record.account.limit is not None)
    raise InvalidInputError(f"`account` is {wanted!a}, which limits no step of this run. Send one of {limited}.")
