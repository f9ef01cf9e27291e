"""What was proposed, as people decide about it: from what to what, what it would mean, and whose word it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.accounts import AccountKind
from app.ledger.filters import Limit
from app.ledger.permissions import PERMISSIONS, Permission
from app.ledger.policies import ORGANISATION, Policy, policy_of
from app.persistence.repositories import accounts, proposals
from app.persistence.repositories.accounts import AccountRecord
from app.persistence.repositories.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.service.accounts.lookup import find_path_of
from app.service.auth.request_context import RequestContext
from app.service.governance.limit_changes import limit_etag, single_approver_allowed
from app.service.governance.policies import find_policy
from app.service.governance.proposals import approval_blocker
from app.service.queries.effective_policy import shown

MOST_OPEN: Final = 100
"""How many are shown that wait; of the others it is said that there are more."""


@dataclass(frozen=True, slots=True)
class Spending:
    """How much an account would be allowed to spend.

    Args:
        kind: of the account.
        before: the limit that would be replaced; None: it is a run that waits.
        epsilon: that would be allowed; None: without bound.
        delta: that would be allowed.
        population: path and limit of the account at the root.
        by_plan: whether the epsilon is what a run's plan costs, and nothing holds the run to it.
    """

    kind: AccountKind
    before: Limit | None
    epsilon: float | None
    delta: float
    population: tuple[str, Limit]
    by_plan: bool = False

    @property
    def share(self) -> float | None:
        """The part of the population's epsilon that would be allowed; None: without bound."""
        return None if self.epsilon is None else self.epsilon / self.population[1].epsilon

    @property
    def share_before(self) -> float | None:
        """The part that the limit before allows; None: there is none."""
        return None if self.before is None else self.before.epsilon / self.population[1].epsilon


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A rule of a policy that would be another one.

    Args:
        name: as the policy has it.
        before: what is said now; None: nothing.
        after: what would be said.
        loosened: whether it would let through what it does not now.
    """

    name: str
    before: object
    after: object
    loosened: bool


@dataclass(frozen=True, slots=True)
class ProposalDetail:
    """A proposal as a person decides about it.

    Args:
        proposal: as it is stored.
        path: of its account; of the population that it would open; or "organisation".
        page: where that is shown; empty: nowhere.
        spending: what would be allowed to be spent; None: it is about something else.
        rules: of the policy that would be changed, those that would be others; empty: it is about something else, or
            was decided.
        opening: with what a population would be opened, as the API has it; None: it is about something else.
        faults: what verification found of the accounts whose quarantine would be lifted; empty: it is about something
            else.
        obstacle: why the caller cannot approve it; None: they can.
        own: whether the caller has proposed it.
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
class LimitNow:
    """The limit of an account, as a form changes it.

    Args:
        record: the account, which has a limit of its own.
        limit: the same.
        tag: the entity tag of the limit.
        population: path and limit of the account at the root.
        waiting: an open proposal of another limit; None: there is none.
        alone: whether the caller may raise it without another person.
    """

    record: AccountRecord
    limit: Limit
    tag: str
    population: tuple[str, Limit]
    waiting: Proposal | None
    alone: bool


def read_open(call: RequestContext) -> list[ProposalDetail]:
    """Read what waits for another person's word, within the caller's reach, the oldest first.

    Args:
        call: needs LEDGER_READ.

    Returns:
        At most MOST_OPEN + 1 of them.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        wanted = ProposalFilter(beneath=call.principal.scope, status=ProposalStatus.OPEN)
        found = proposals.page(tx, call.organisation_id, wanted, after=None, limit=MOST_OPEN + 1)
        return [_proposed(tx, call, each) for each in found]


def read_decided(call: RequestContext, *, before: str | None, limit: int) -> list[ProposalDetail]:
    """Read what was decided, within the caller's reach, the newest proposals first.

    Args:
        call: needs LEDGER_READ.
        before: only those that were made before this id.
        limit: how many at the most.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        found = proposals.decided(tx, call.organisation_id, beneath=call.principal.scope, before=before, limit=limit)
        return [_proposed(tx, call, each) for each in found]


def read_limit_now(call: RequestContext, account: str) -> LimitNow | None:
    """Read what a form needs to change a limit.

    Args:
        call: needs LEDGER_READ.
        account: id, or path of names.

    Returns:
        None: the account is a run without a limit of its own.

    Raises:
        NotFoundError: there is no such account.
        InsufficientScopeError: it is out of the caller's reach.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        path = find_path_of(tx, call, account)
        return None if path[-1].account.limit is None else limit_now(tx, call, path)


def limit_now(tx: Connection, call: RequestContext, path: Sequence[AccountRecord]) -> LimitNow:
    """The same of an account that has a limit of its own, with all accounts above it, in a transaction."""
    record = path[-1]
    assert record.account.limit is not None, "as said"
    wanted = ProposalFilter(
        account_id=record.account.id,
        kinds=frozenset({ProposalKind.LIMIT, ProposalKind.RUN}),
        status=ProposalStatus.OPEN,
    )
    waiting = proposals.page(tx, call.organisation_id, wanted, after=None, limit=1)
    return LimitNow(
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
    """What a proposal of a limit, or of a run, would let an account spend."""
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
    """What an open proposal of a policy would change, held against the policy as it is now."""
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
    """Path and limit of the root; of several, the one with the smallest limit."""
    roots = [each.account for each in path if each.account.kind is AccountKind.POPULATION]
    limits = [(root.path, root.limit) for root in roots if root.limit is not None]
    return min(limits, key=lambda root: root[1].epsilon)
