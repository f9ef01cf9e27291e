"""Allocations: how populations and budgets share out what they have among plans (ADR 0041)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction

from sqlalchemy import Connection

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.audit import AuditAction
from app.ledger.errors import InvalidInputError, PreconditionFailedError
from app.ledger.governance.proposals import Proposal, ProposalKind
from app.ledger.permissions import Permission
from app.ledger.settings.allocation import (
    Allocation,
    SchedulingRule,
    Share,
    Unlock,
    UnlockOverTime,
    allocation_of,
    facts_of,
    unlocks_earlier,
)
from app.persistence.repositories import account_writes, accounts
from app.service.accounts.locked_limits import Unlocked, read_unlocked
from app.service.accounts.lookup import find_parent
from app.service.auth.request_context import RequestContext
from app.service.change_control import one_person_suffices, propose_once, require_if_match
from app.service.idempotency import run_effect


@dataclass(frozen=True, slots=True)
class AllocationTerms:
    """A new allocation as it is asked for; shares name budgets by id or path.

    `since` of an unlock that does not say when it begins is None: it begins now, or goes on if nothing else changes.
    """

    rule: SchedulingRule | None
    aging_seconds: int | None
    unlock: Unlock | None
    unlock_begins: bool
    shares: Mapping[str, Share]


@dataclass(frozen=True, slots=True)
class AllocationRecord:
    """The allocation of an account, if it has one, and its state.

    Args:
        unlocked: usable part of its limit.
        next_unlock_at: when the next part becomes usable; None: never, or it depends on arrivals.
        arrivals: runs that have asked for a plan, if they unlock the limit.
        paths: of the accounts with a share, by id.
    """

    account: Account
    unlocked: Fraction
    next_unlock_at: datetime | None
    arrivals: int | None
    paths: Mapping[str, str]

    @property
    def allocation(self) -> Allocation | None:
        """The allocation; None: steps need no plan."""
        return self.account.allocation

    @property
    def tag(self) -> str:
        """Entity tag of the allocation and of what is usable."""
        usable = f"{self.unlocked.numerator}.{self.unlocked.denominator}.{self.arrivals}"
        return f'"{self.account.id}-allocation-{self.account.allocation_revision}-{usable}"'

    def facts(self) -> dict[str, object]:
        """Build the audit payload."""
        found = self.account.allocation
        return {
            "allocation": None if found is None else facts_of(found),
            "revision": self.account.allocation_revision,
        }


def read_allocation(context: RequestContext, account: str) -> AllocationRecord:
    """Get the allocation of a population or budget."""
    with context.read() as tx:
        return find_allocation(tx, context, find_parent(tx, context, account).account)


def find_allocation(tx: Connection, context: RequestContext, account: Account) -> AllocationRecord:
    """Describe the allocation of an account and what it has unlocked."""
    allocation, owner = account.allocation, context.organisation_id
    unlocked = Unlocked()
    if allocation is not None:
        unlocked = read_unlocked(tx, owner, account.id, allocation, context.lapsed_by)
    unlock = None if allocation is None else allocation.unlock
    next_at = None
    if isinstance(unlock, UnlockOverTime):
        window = unlock.window(context.now) + 1
        next_at = unlock.begin(window) if window < unlock.parts else None
    shared = sorted(allocation.shares) if allocation is not None else []
    paths = {each.account.id: each.account.path for each in accounts.read_many(tx, owner, shared)} if shared else {}
    return AllocationRecord(account, unlocked.part, next_at, unlocked.arrivals, paths)


def replace_allocation(
    context: RequestContext, account: str, terms: AllocationTerms | None, reason: str, tag: str | None
) -> AllocationRecord | Proposal:
    """Replace the allocation of a population or budget; `terms` None removes it, `tag` is the value of If-Match.

    An equal one is neither written nor recorded. Nothing that is reserved already is taken back. One that unlocks the
    limit earlier is proposed, unless one person may raise limits.

    Raises:
        PreconditionRequiredError: If-Match is missing.
        PreconditionFailedError: the allocation has changed.
        InvalidInputError: another proposal is open, a value is out of range, a rule is not a population's, or a share
            is not of a budget directly under a sequential account.
    """
    context.require_permission(Permission.ACCOUNT_MANAGE)

    def write(tx: Connection) -> AllocationRecord | Proposal:
        found = find_parent(tx, context, account).account.id
        path = [record.account for record in accounts.path_of(tx, context.organisation_id, found)]
        own = path[-1]
        before = find_allocation(tx, context, own)
        require_if_match("allocation", before.tag, tag, allocation_revision=own.allocation_revision)
        wanted = None if terms is None else _allocation(tx, context, own, terms)
        if wanted == own.allocation:
            return before
        if unlocks_earlier(own.allocation, wanted) and not one_person_suffices(context, path):
            facts = {"allocation": wanted and facts_of(wanted), "revision": own.allocation_revision}
            return propose_once(tx, context, ProposalKind.ALLOCATION, own.id, facts, reason)
        return _write(tx, context, before, wanted, reason)

    return run_effect(context, write)


def approve_allocation(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Apply a proposed allocation; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: the allocation has changed since the proposal.
    """
    own = accounts.path_of(tx, context.organisation_id, proposal.subject)[-1].account
    facts = proposal.proposed
    if own.allocation_revision != facts["revision"]:
        raise PreconditionFailedError(
            "The allocation was changed since this was proposed; reject the proposal, and let it be proposed anew.",
            allocation_revision=own.allocation_revision,
        )
    wanted = None if facts["allocation"] is None else allocation_of(facts["allocation"])
    _write(tx, context, find_allocation(tx, context, own), wanted, proposal.reason)


def _write(
    tx: Connection, context: RequestContext, before: AllocationRecord, wanted: Allocation | None, reason: str
) -> AllocationRecord:
    """Write an allocation and its audit event; the organisation is locked."""
    own = before.account
    after = replace(own, allocation=wanted, allocation_revision=own.allocation_revision + 1, version=own.version + 1)
    account_writes.set_allocation(tx, context.organisation_id, after, context.now)
    record = find_allocation(tx, context, after)
    context.record(tx, AuditAction.ALLOCATION_REPLACED, own.id, before.facts(), record.facts(), reason)
    return record


def _allocation(tx: Connection, context: RequestContext, account: Account, terms: AllocationTerms) -> Allocation:
    """Build the allocation of an account; an unlock that does not begin anew goes on."""
    is_population = account.kind is AccountKind.POPULATION
    if terms.rule is not None and not is_population:
        raise InvalidInputError(
            f"{account.path} is a {account.kind}: plans are served in the order of their population's rule. Leave "
            "`rule` out, and set it on the population.",
            field="rule",
        )
    rule = terms.rule or (SchedulingRule.FIRST_COME if is_population else None)
    shares = {_share_holder(tx, context, account, name): share for name, share in terms.shares.items()}
    if len(shares) < len(terms.shares):
        raise InvalidInputError("`shares` names a budget by its id and by its path. Send one share.", field="shares")
    return Allocation(rule, terms.aging_seconds, _continued(account, terms), shares)


def _continued(account: Account, terms: AllocationTerms) -> Unlock | None:
    before = None if account.allocation is None else account.allocation.unlock
    unlock = terms.unlock
    if unlock is None or terms.unlock_begins or before is None or type(before) is not type(unlock):
        return unlock
    continued = replace(unlock, since=before.since)
    return continued if continued == before else unlock


def _share_holder(tx: Connection, context: RequestContext, account: Account, name: str) -> str:
    found = find_parent(tx, context, name).account
    if found.parent_id != account.id:
        raise InvalidInputError(
            f"{found.path} is not directly under {account.path}; `shares` names its own budgets.", field="shares"
        )
    if account.partitions_per_unit is not None:
        raise InvalidInputError(
            f"{account.path} is composed in parallel: its parts hold different people and share nothing. Leave "
            "`shares` out, and set the limit of each part.",
            field="shares",
        )
    return found.id
