"""Read model of the effective policy: its rules and their sources."""

from dataclasses import dataclass, fields
from typing import Any

from app.ledger.permissions import Permission
from app.ledger.policies import ORGANISATION, Policy, PolicySource
from app.ledger.policy_checks import sources_of
from app.ledger.proposals import Proposal, ProposalKind
from app.persistence.repositories import accounts
from app.service.auth.request_context import RequestContext
from app.service.governance.policies import PolicyRecord, read_policy
from app.service.governance.proposing import open_proposals


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


def read_effective_policy(call: RequestContext, account: str | None) -> EffectivePolicy:
    """Get an effective policy with the source of each rule; None: the organisation's."""
    record = read_policy(call, account)
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        sources: tuple[PolicySource, ...] = (PolicySource(ORGANISATION, record.policy),)
        if account is not None:
            path = accounts.path_of(tx, call.organisation_id, record.subject)
            sources = sources_of([each.account for each in path])
        about = None if account is None else record.subject
        waiting = next(iter(open_proposals(tx, call, about, {ProposalKind.POLICY}, limit=1)), None)
    return EffectivePolicy(record, tuple(_rule(field.name, record, sources) for field in fields(Policy)), waiting)


def _rule(name: str, record: PolicyRecord, sources: tuple[PolicySource, ...]) -> PolicyRule:
    holds = getattr(record.effective, name)
    saying = [(source.path, getattr(source.policy, name)) for source in sources]
    by = tuple(
        path
        for path, value in saying
        if value not in (None, False) and (value == holds or isinstance(value, frozenset))
    )
    return PolicyRule(name, shown(getattr(record.policy, name)), shown(holds), by)


def shown(value: object) -> object:
    """Convert a rule's value for display; None: not set."""
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return None if value is False else value
