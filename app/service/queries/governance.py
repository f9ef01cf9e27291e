"""Read models of policies, of proposals for review, and of limits for their form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import title_of
from app.ledger.filter.limits import Limit
from app.ledger.governance.policy_checks import sources_of
from app.ledger.governance.proposals import EXCLUSIVE, Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import PERMISSIONS, Permission
from app.ledger.settings.policies import ORGANISATION, PolicySource, loosened, policy_of
from app.ledger.settings.policy_rules import Policy
from app.persistence.repositories import account_metadata, accounts, proposals, runs
from app.service.accounts.lookup import find_path_of
from app.service.auth.request_context import RequestContext
from app.service.change_control import open_proposals
from app.service.governance.limit_changes import LimitRecord, find_limit, single_approver_allowed
from app.service.governance.policies import POLICIES, PolicyRecord, find_policy
from app.service.governance.proposals import approval_blocker
from app.service.queries.proposal_effects import AccountEffect, limit_effects, run_effects

MOST_OPEN: Final = 100
"""Number of open proposals shown."""


@dataclass(frozen=True, slots=True)
class Spending:
    """Spending that a proposal would allow an account.

    Args:
        before: the limit to be replaced; None: the proposal is about a run.
        epsilon: None: unbounded.
        population: path and limit of the root.
        limit: that is asked for; None: a run's registration.
        by_plan: whether epsilon is the cost of a run's plan, which does not limit the run.
        effects: spending of the accounts before and after, of open proposals only.
    """

    kind: AccountKind
    before: Limit | None
    epsilon: float | None
    delta: float
    population: tuple[str, Limit]
    by_plan: bool = False
    limit: Limit | None = None
    effects: tuple[AccountEffect, ...] = ()

    @property
    def is_beyond_population(self) -> bool:
        """Whether more would be allowed than the population's limit."""
        return self.epsilon is None or self.epsilon > self.population[1].epsilon

    @property
    def binding(self) -> AccountEffect | None:
        """The account above that will be fuller than the account whose limit changes; None: there is none."""
        if self.before is None or not self.effects:
            return None
        own, *above = self.effects
        fullest = max(above, key=lambda each: each.used_after, default=own)
        return fullest if fullest.used_after > own.used_after else None


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
        spending: for limits and runs.
        rules: the changed rules of an open policy proposal.
        opening: the request that would create a population.
        faults: discrepancies of the accounts whose quarantine would be lifted.
        obstacle: why the caller cannot approve it; None: the caller can.
        number: tells apart the runs at one path.
    """

    proposal: Proposal
    path: str
    spending: Spending | None
    rules: tuple[RuleChange, ...] = ()
    opening: Mapping[str, Any] | None = None
    faults: tuple[str, ...] = ()
    obstacle: str | None = None
    own: bool = False
    number: int = 1

    @property
    def title(self) -> str:
        """The path, with the number of a run that is not the first."""
        return title_of(self.path, self.number)


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A rule of a policy.

    Args:
        said: the value set at the account itself; None: not set.
        holds: the effective value; None: no requirement.
        sources: paths of the policies that set it, "organisation" among them; empty: the default.
    """

    name: str
    said: Any
    holds: Any
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """A policy with its effective rules, and an open proposal to loosen it."""

    record: PolicyRecord
    rules: tuple[PolicyRule, ...]
    waiting: Proposal | None


@dataclass(frozen=True, slots=True)
class CurrentLimit:
    """The limit of an account, for the form that changes it.

    Args:
        population: path and limit of the root.
        waiting: an open proposal of another limit.
        alone: whether the caller may raise it without a second approver.
        title: its path, with the number of a run that is not the first.
        archived: path of the archived account that makes it read-only; None: none does.
    """

    record: LimitRecord
    population: tuple[str, Limit]
    waiting: Proposal | None
    alone: bool
    title: str
    archived: str | None


def read_open_proposals(context: RequestContext) -> Page[ProposalDetail]:
    """List the newest open proposals, MOST_OPEN at most."""
    with context.read() as tx:
        wanted = ProposalFilter(within=context.principal.scope, status=ProposalStatus.OPEN)
        found = proposals.page(tx, context.organisation_id, wanted, PageRequest(MOST_OPEN))
        return found.map(lambda items: [_proposed(tx, context, each) for each in items])


def read_decided_proposals(context: RequestContext, page: PageRequest) -> Page[ProposalDetail]:
    """List the decided proposals."""
    with context.read() as tx:
        found = proposals.list_closed(tx, context.organisation_id, context.principal.scope, page)
        return found.map(lambda items: [_proposed(tx, context, each) for each in items])


def read_current_limit(context: RequestContext, account: str) -> CurrentLimit | None:
    """Get the limit of an account for its form; None: a run without one."""
    with context.read() as tx:
        path = find_path_of(tx, context, account)
        return None if path[-1].account.limit is None else current_limit(tx, context, path)


def read_effective_policy(context: RequestContext, account: str | None) -> EffectivePolicy:
    """Get an effective policy with the source of each rule; None: the organisation's."""
    record = POLICIES.read(context, account)
    with context.read() as tx:
        sources: tuple[PolicySource, ...] = (PolicySource(ORGANISATION, record.value),)
        if account is not None:
            sources = sources_of([each.account for each in record.accounts])
        waiting = next(iter(open_proposals(tx, context, record.account_id, {ProposalKind.POLICY}, limit=1)), None)
    return EffectivePolicy(record, tuple(_rule(field.name, record, sources) for field in fields(Policy)), waiting)


def current_limit(tx: Connection, context: RequestContext, path: Sequence[AccountRecord]) -> CurrentLimit:
    """Get the limit of the last account of a path within a transaction."""
    found, account = find_limit(tx, context, path), path[-1].account
    waiting = open_proposals(tx, context, account.id, EXCLUSIVE[ProposalKind.LIMIT], limit=1)
    number = account_metadata.numbers_of(tx, context.organisation_id, [account.id]).get(account.id, 1)
    return CurrentLimit(
        record=found,
        population=_population(path),
        waiting=next(iter(waiting), None),
        alone=single_approver_allowed(tx, context, found, found.value),
        title=title_of(account.path, number),
        archived=next(iter(account_metadata.archived_above(tx, context.organisation_id, account.id)), None),
    )


def _proposed(tx: Connection, context: RequestContext, proposal: Proposal) -> ProposalDetail:
    may = proposal.status is ProposalStatus.OPEN and Permission.PROPOSAL_APPROVE in PERMISSIONS[context.principal.role]
    path, number = ORGANISATION, 1
    spending = None
    if proposal.kind is ProposalKind.POPULATION:
        path = str(proposal.proposed["name"])
    if proposal.account_id is not None:
        accounts_above = accounts.path_of(tx, context.organisation_id, proposal.account_id)
        account = accounts_above[-1].account
        path = account.path
        number = account_metadata.numbers_of(tx, context.organisation_id, [account.id]).get(account.id, 1)
        spending = _spending(tx, context, accounts_above, proposal)
    return ProposalDetail(
        proposal=proposal,
        path=path,
        spending=spending,
        rules=_rules(tx, context, proposal),
        opening=proposal.proposed if proposal.kind is ProposalKind.POPULATION else None,
        faults=tuple(proposal.proposed["quarantined"].values()) if proposal.kind is ProposalKind.QUARANTINE else (),
        obstacle=approval_blocker(tx, context, proposal) if may else None,
        own=proposal.proposed_by == context.principal.actor,
        number=number,
    )


def _spending(
    tx: Connection, context: RequestContext, path: Sequence[AccountRecord], proposal: Proposal
) -> Spending | None:
    """Get the spending that a limit or run proposal would allow."""
    facts, account = proposal.proposed, path[-1].account
    if proposal.kind not in {ProposalKind.LIMIT, ProposalKind.RUN}:
        return None
    limit = Limit.of(facts["limit"]) if "limit" in facts else None
    waits = proposal.status is ProposalStatus.OPEN
    replaces = waits and proposal.kind is ProposalKind.LIMIT
    effects: tuple[AccountEffect, ...] = ()
    if limit is not None and replaces:
        effects = limit_effects(context, path, limit)
    elif waits:
        effects = run_effects(tx, context, path, runs.get(tx, context.organisation_id, account.id))
    return Spending(
        kind=account.kind,
        before=account.limit if replaces else None,
        epsilon=facts["epsilon"] if limit is None else limit.epsilon,
        delta=facts["delta"] if limit is None else limit.shown_delta,
        limit=limit,
        population=_population(path),
        by_plan=proposal.kind is ProposalKind.RUN and facts["planned"] and not facts["limited"],
        effects=effects,
    )


def _rules(tx: Connection, context: RequestContext, proposal: Proposal) -> tuple[RuleChange, ...]:
    """Compare an open policy proposal with the present policy."""
    if proposal.kind is not ProposalKind.POLICY or proposal.status is not ProposalStatus.OPEN:
        return ()
    owner, account_id = context.organisation_id, proposal.account_id
    path = [] if account_id is None else accounts.path_of(tx, owner, account_id)
    before, after = find_policy(tx, context, path).value, policy_of(proposal.proposed["policy"])
    looser = loosened(before, after, of_organisation=account_id is None)
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in Policy.__dataclass_fields__}
    return tuple(
        RuleChange(name, _shown(was), _shown(would), name in looser)
        for name, (was, would) in pairs.items()
        if was != would
    )


def _population(path: Sequence[AccountRecord]) -> tuple[str, Limit]:
    """Get path and limit of the root with the smallest limit."""
    roots = [each.account for each in path if each.account.kind is AccountKind.POPULATION]
    limits = [(root.path, root.limit) for root in roots if root.limit is not None]
    return min(limits, key=lambda root: root[1].epsilon)


def _rule(name: str, record: PolicyRecord, sources: tuple[PolicySource, ...]) -> PolicyRule:
    holds = getattr(record.effective, name)
    saying = [(source.path, getattr(source.policy, name)) for source in sources]
    by = tuple(
        path
        for path, value in saying
        if value not in (None, False) and (value == holds or isinstance(value, frozenset))
    )
    return PolicyRule(name, _shown(getattr(record.value, name)), _shown(holds), by)


def _shown(value: object) -> object:
    """Convert a rule's value for display; None: not set."""
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return None if value is False else value
