"""Read models of proposals for review and of limits for their form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.account_records import AccountRecord
from app.ledger.accounts import AccountKind
from app.ledger.filters import Limit
from app.ledger.permissions import PERMISSIONS, Permission
from app.ledger.policies import ORGANISATION, Policy, policy_of
from app.ledger.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.persistence.repositories import accounts, proposals
from app.service.accounts.lookup import find_path_of
from app.service.auth.request_context import RequestContext
from app.service.governance.limit_changes import limit_etag, single_approver_allowed
from app.service.governance.policies import find_policy
from app.service.governance.proposals import approval_blocker
from app.service.queries.effective_policy import shown

MOST_OPEN: Final = 100
"""Number of open proposals shown."""


@dataclass(frozen=True, slots=True)
class Spending:
    """Spending that a proposal would allow an account.

    Args:
        before: the limit to be replaced; None: the proposal is about a run.
        epsilon: None: unbounded.
        population: path and limit of the root.
        by_plan: whether epsilon is the cost of a run's plan, which does not limit the run.
    """

    kind: AccountKind
    before: Limit | None
    epsilon: float | None
    delta: float
    population: tuple[str, Limit]
    by_plan: bool = False

    @property
    def share(self) -> float | None:
        """Share of the population's epsilon that would be allowed; None: unbounded."""
        return None if self.epsilon is None else self.epsilon / self.population[1].epsilon

    @property
    def share_before(self) -> float | None:
        """Share that the present limit allows; None: no such limit."""
        return None if self.before is None else self.before.epsilon / self.population[1].epsilon


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A changed rule of a policy; None: not set."""

    name: str
    before: object
    after: object
    loosened: bool


@dataclass(frozen=True, slots=True)
class ProposalDetail:
    """A proposal, as the approver reads it.

    Args:
        path: of its account, or of the population that it would create; or "organisation".
        page: the page of that; empty: none.
        spending: for limits and runs.
        rules: the changed rules of an open policy proposal.
        opening: the request that would create a population.
        faults: discrepancies of the accounts whose quarantine would be lifted.
        obstacle: why the caller cannot approve it; None: the caller can.
    """

    proposal: Proposal
    path: str
    page: str
    spending: Spending | None
    rules: tuple[RuleChange, ...] = ()
    opening: Mapping[str, Any] | None = None
    faults: tuple[str, ...] = ()
    obstacle: str | None = None
    own: bool = False


@dataclass(frozen=True, slots=True)
class CurrentLimit:
    """The limit of an account, for the form that changes it.

    Args:
        population: path and limit of the root.
        waiting: an open proposal of another limit.
        alone: whether the caller may raise it without a second approver.
    """

    record: AccountRecord
    limit: Limit
    tag: str
    population: tuple[str, Limit]
    waiting: Proposal | None
    alone: bool


def read_open_proposals(call: RequestContext) -> list[ProposalDetail]:
    """List the open proposals, the oldest first, MOST_OPEN + 1 at most."""
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        wanted = ProposalFilter(beneath=call.principal.scope, status=ProposalStatus.OPEN)
        found = proposals.page(tx, call.organisation_id, wanted, after=None, limit=MOST_OPEN + 1)
        return [_proposed(tx, call, each) for each in found]


def read_decided_proposals(call: RequestContext, *, before: str | None, limit: int) -> list[ProposalDetail]:
    """List the decided proposals, the newest first, made before an id."""
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        found = proposals.list_closed(
            tx, call.organisation_id, beneath=call.principal.scope, before=before, limit=limit
        )
        return [_proposed(tx, call, each) for each in found]


def read_current_limit(call: RequestContext, account: str) -> CurrentLimit | None:
    """Get the limit of an account for its form; None: a run without one."""
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        path = find_path_of(tx, call, account)
        return None if path[-1].account.limit is None else current_limit(tx, call, path)


def current_limit(tx: Connection, call: RequestContext, path: Sequence[AccountRecord]) -> CurrentLimit:
    """Get the limit of the last account of a path within a transaction."""
    record = path[-1]
    assert record.account.limit is not None, "as said"
    wanted = ProposalFilter(
        account_id=record.account.id,
        kinds=frozenset({ProposalKind.LIMIT, ProposalKind.RUN}),
        status=ProposalStatus.OPEN,
    )
    waiting = proposals.page(tx, call.organisation_id, wanted, after=None, limit=1)
    return CurrentLimit(
        record=record,
        limit=record.account.limit,
        tag=limit_etag(record),
        population=_population(path),
        waiting=next(iter(waiting), None),
        alone=single_approver_allowed(tx, call, [each.account for each in path], record.account.limit),
    )


def _proposed(tx: Connection, call: RequestContext, proposal: Proposal) -> ProposalDetail:
    may = proposal.status is ProposalStatus.OPEN and Permission.PROPOSAL_APPROVE in PERMISSIONS[call.principal.role]
    path, page = ORGANISATION, "/policies"
    spending = None
    if proposal.kind is ProposalKind.POPULATION:
        path, page = str(proposal.proposed["name"]), ""
    if proposal.account_id is not None:
        accounts_above = accounts.path_of(tx, call.organisation_id, proposal.account_id)
        account = accounts_above[-1].account
        path, page = account.path, f"/{'runs' if account.kind is AccountKind.RUN else 'accounts'}/{account.id}"
        spending = _spending(accounts_above, proposal)
    return ProposalDetail(
        proposal=proposal,
        path=path,
        page=page,
        spending=spending,
        rules=_rules(tx, call, proposal),
        opening=proposal.proposed if proposal.kind is ProposalKind.POPULATION else None,
        faults=tuple(proposal.proposed["quarantined"].values()) if proposal.kind is ProposalKind.QUARANTINE else (),
        obstacle=approval_blocker(tx, call, proposal) if may else None,
        own=proposal.proposed_by == call.principal.actor,
    )


def _spending(path: Sequence[AccountRecord], proposal: Proposal) -> Spending | None:
    """Get the spending that a limit or run proposal would allow."""
    facts, account = proposal.proposed, path[-1].account
    if proposal.kind not in {ProposalKind.LIMIT, ProposalKind.RUN}:
        return None
    asked = facts.get("limit", facts)
    replaces = proposal.kind is ProposalKind.LIMIT and proposal.status is ProposalStatus.OPEN
    return Spending(
        kind=account.kind,
        before=account.limit if replaces else None,
        epsilon=asked["epsilon"],
        delta=asked["delta"],
        population=_population(path),
        by_plan=proposal.kind is ProposalKind.RUN and facts["planned"] and not facts["limited"],
    )


def _rules(tx: Connection, call: RequestContext, proposal: Proposal) -> tuple[RuleChange, ...]:
    """Compare an open policy proposal with the present policy."""
    if proposal.kind is not ProposalKind.POLICY or proposal.status is not ProposalStatus.OPEN:
        return ()
    before, after = find_policy(tx, call, proposal.account_id), policy_of(proposal.proposed["policy"])
    looser = before.loosened(after)
    pairs = {name: (getattr(before.policy, name), getattr(after, name)) for name in Policy.__dataclass_fields__}
    return tuple(
        RuleChange(name, shown(was), shown(would), name in looser)
        for name, (was, would) in pairs.items()
        if was != would
    )


def _population(path: Sequence[AccountRecord]) -> tuple[str, Limit]:
    """Get path and limit of the root with the smallest limit."""
    roots = [each.account for each in path if each.account.kind is AccountKind.POPULATION]
    limits = [(root.path, root.limit) for root in roots if root.limit is not None]
    return min(limits, key=lambda root: root[1].epsilon)
