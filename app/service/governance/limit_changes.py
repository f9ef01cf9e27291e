"""Changing a limit: an act with a reason, and, where it lets more through, of two persons."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import Connection

from app.ledger.accounts import Account, AccountKind
from app.ledger.alert_thresholds import reached
from app.ledger.audit_actions import AuditAction
from app.ledger.errors import (
    InvalidInputError,
    NotFoundError,
    PreconditionFailedError,
)
from app.ledger.filters import Limit
from app.ledger.limit_changes import is_lowered, is_raised, with_limit
from app.ledger.permissions import PERMISSIONS, Permission
from app.ledger.policies import effective
from app.ledger.policy_checks import Size, require_limit_allowed, require_run, sources_of
from app.persistence.repositories import account_writes, accounts, alerts
from app.persistence.repositories.accounts import AccountRecord, Population
from app.persistence.repositories.balances import weights_facts
from app.persistence.repositories.proposals import Proposal, ProposalKind
from app.service.accounts.lookup import find_account, find_path_of, require_every_budget
from app.service.accounts.spec import validate_spec
from app.service.alerts.alert_factory import thresholds_reached
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.governance.if_match import require_if_match
from app.service.governance.proposing import propose, require_none_open
from app.service.governance.run_policy_checks import needs_approval
from app.service.governance.unapproved import find_excess
from app.service.governance.withdrawal import withdraw_plans
from app.service.idempotency import CREATED, IdempotentRequest, ResponseOverride, StoredResponse, run_idempotent

OK = 200


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """Another limit for an account.

    Args:
        account: id, or path of names.
        limit: the new one.
        reason: why.
        tag: the entity tag of the limit that the asker has seen; None: it sent none.
    """

    account: str
    limit: Limit
    reason: str
    tag: str | None


def read_limit(call: RequestContext, account: str) -> AccountRecord:
    """Read an account's limit.

    Args:
        call: needs LEDGER_READ.
        account: id, or path of names.

    Returns:
        The account; it has a limit of its own.

    Raises:
        NotFoundError: there is no such account, or it has no limit of its own.
        InsufficientScopeError: it is out of the caller's reach.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        return _with_limit(find_account(tx, call, account))


def limit_etag(record: AccountRecord) -> str:
    """The entity tag of an account's limit: it changes with the limit, and not with what is spent."""
    return f'"{record.account.id}-{record.account.limit_revision}"'


def change_limit(
    call: RequestContext,
    request: LimitRequest,
    identity: IdempotentRequest,
    changed: Callable[[AccountRecord], str],
    proposed: Callable[[Proposal], str],
) -> StoredResponse:
    """Lower a limit at once, or propose to raise it.

    Args:
        call: needs ACCOUNT_MANAGE to lower it, PLAN to propose.
        request: account, limit, reason, entity tag.
        identity: of the request.
        changed: makes the reply's body where the limit is changed.
        proposed: makes the reply's body where another person has to approve.

    Returns:
        The reply: 200 if the limit is changed, 201 if it is proposed.

    Raises:
        NotFoundError: there is no such account, or it has no limit of its own.
        InsufficientScopeError: the caller's role does not allow it, or the account is out of its reach.
        PreconditionRequiredError: the request names no entity tag.
        PreconditionFailedError: the limit was changed since the asker has seen it.
        InvalidInputError: the account has that limit, or an open proposal.
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: nothing could ever be admitted.
        PolicyViolationError: a policy does not allow the limit.
    """
    call.require_permission(Permission.LIMIT_PROPOSE)

    def create(tx: Connection, ready: PrecomputedCosts) -> str | ResponseOverride:
        path = find_path_of(tx, call, request.account)
        record = _with_limit(path[-1])
        require_if_match("limit", limit_etag(record), request.tag, limit_revision=record.account.limit_revision)
        limit = record.account.limit
        assert limit is not None, "it was looked for"
        if limit == request.limit:
            raise InvalidInputError("The account has this limit already.")
        _limited(path, request.limit, ready)
        _require_allowed(path, request.limit)
        raised, places = is_raised(limit, request.limit), [each.account for each in path]
        if raised and not single_approver_allowed(tx, call, places, request.limit):
            return ResponseOverride(proposed(_propose(tx, call, record, request)), CREATED)
        call.require_permission(Permission.ACCOUNT_MANAGE)
        if raised:
            require_every_budget(tx, call, record.account.id)
        return ResponseOverride(changed(apply_limit(tx, call, path, request.limit, request.reason, ready)), OK)

    return run_idempotent(call, identity, create)


def approve_limit(tx: Connection, call: RequestContext, proposal: Proposal, ready: PrecomputedCosts) -> None:
    """Give an account the limit that was proposed for it.

    Args:
        tx: a writer's transaction, which has locked the organisation.
        call: who approves.
        proposal: open, of another person.
        ready: has the curves of what is planned.

    Raises:
        PreconditionFailedError: the limit was changed since it was proposed.
        PolicyViolationError: a policy does not allow the limit.
    """
    path = accounts.path_of(tx, call.organisation_id, proposal.subject)
    account = path[-1].account
    facts = proposal.proposed
    if account.limit_revision != facts["revision"]:
        raise PreconditionFailedError(
            "The limit was changed since this was proposed; reject the proposal, and let it be proposed anew.",
            limit_revision=account.limit_revision,
        )
    limit = Limit(**facts["limit"])
    _require_allowed(path, limit)
    apply_limit(tx, call, path, limit, proposal.reason, ready)


def apply_limit(
    tx: Connection,
    call: RequestContext,
    path: Sequence[AccountRecord],
    limit: Limit,
    reason: str,
    ready: PrecomputedCosts,
) -> AccountRecord:
    """Write another limit, and who did it.

    Args:
        tx: a writer's transaction, which has locked the organisation and then the account's path.
        call: who decides.
        path: all accounts above the account, root first, and itself as it is.
        limit: the new one.
        reason: why.
        ready: has the curves of what is planned.

    Returns:
        The account afterwards.
    """
    record, after = path[-1], _limited(path, limit, ready)
    account_writes.set_limit(tx, call.organisation_id, after, call.now)
    now = replace(record, account=after, updated_at=call.now)
    assert record.account.limit is not None, "only a limit can be changed"
    withdrawn = withdraw_plans(tx, call, after, ready) if is_lowered(record.account.limit, limit) else []
    facts = limit_payload(now) | ({"withdrawn": withdrawn} if withdrawn else {})
    call.record(
        tx, AuditEvent(AuditAction(f"{after.kind}.limit_changed"), after.id, limit_payload(record), facts, reason)
    )
    thresholds = record.tells.thresholds
    crossed = thresholds[reached(record.account, thresholds) : reached(after, thresholds)]
    alerts.add(tx, call.organisation_id, thresholds_reached(after, crossed, call.now))
    return now


def limit_payload(record: AccountRecord) -> dict[str, object]:
    """What the chain keeps of a limit: all that decides what it lets through."""
    account = record.account
    assert account.limit is not None, "only a limit can be changed"
    return {
        "limit": asdict(account.limit),
        "revision": account.limit_revision,
        "weights": weights_facts(account.weights),
    }


def _propose(tx: Connection, call: RequestContext, record: AccountRecord, request: LimitRequest) -> Proposal:
    account = record.account
    require_none_open(tx, call, account.id, {ProposalKind.LIMIT, ProposalKind.RUN})
    facts = {"limit": asdict(request.limit), "revision": account.limit_revision}
    return propose(tx, call, ProposalKind.LIMIT, account.id, facts, request.reason, before=limit_payload(record))


def _limited(path: Sequence[AccountRecord], limit: Limit, ready: PrecomputedCosts) -> Account:
    """An account with another limit, that protects the people of every population to which it belongs."""
    after = with_limit(path[-1].account, limit)
    for population in _populations(path):
        after = validate_spec(after, population, ready)
    return after


def _populations(path: Sequence[AccountRecord]) -> list[Population]:
    """The populations above an account: a run may charge several."""
    return [record.population for record in path if record.account.kind is AccountKind.POPULATION]


def _require_allowed(path: Sequence[AccountRecord], limit: Limit) -> None:
    """Let an account have a limit that the policies above it allow, as if it were opened with it."""
    own, sources = path[-1], sources_of([record.account for record in path])
    for population in _populations(path):
        require_limit_allowed(sources, limit, population.size)
    if own.account.kind is AccountKind.RUN:
        require_run(sources, Size(limit.epsilon, limit.delta), limited=True, planned=True)


def single_approver_allowed(tx: Connection, call: RequestContext, path: Sequence[Account], limit: Limit) -> bool:
    """Whether the policy lets one person raise a limit, and the caller is one who could approve it.

    A run that would need an approval to be registered with the new limit needs one to be given it.

    Args:
        tx: the caller's transaction.
        call: who would raise it.
        path: all accounts above the account, and itself.
        limit: the new one.
    """
    *above, own = path
    if (
        effective(sources_of(path)).approvers_to_raise_limit != 1
        or Permission.PROPOSAL_APPROVE not in PERMISSIONS[call.principal.role]
    ):
        return False
    if own.kind is not AccountKind.RUN:
        return True
    if needs_approval(path, Size(limit.epsilon, limit.delta)):
        return False
    return find_excess(tx, call, above, limit.epsilon, raised=own.id) is None


def _with_limit(record: AccountRecord) -> AccountRecord:
    if record.account.limit is None:
        raise NotFoundError(f"The {AccountKind.RUN} {record.account.id} has no limit of its own.")
    return record
