"""What the policies of an account and of all above it say, rule by rule: what holds, and who said so."""

from dataclasses import dataclass, fields
from typing import Any

from app.ledger.permissions import Permission
from app.ledger.policies import ORGANISATION, Policy, PolicySource
from app.ledger.policy_checks import sources_of
from app.persistence.repositories import accounts
from app.persistence.repositories.proposals import Proposal, ProposalKind
from app.service.auth.request_context import RequestContext
from app.service.governance.policies import PolicyRecord, read_policy
from app.service.governance.proposing import open_proposals


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule of a policy, at a place.

    Args:
        name: as the policy has it.
        said: at the place itself; None: nothing.
        holds: there; None: nothing is asked.
        sources: the paths of those that made it so, "organisation" among them; empty: it is so by default.
    """

    name: str
    said: Any
    holds: Any
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The policy of a place, as a person reads it.

    Args:
        record: the policy, and what holds.
        rules: all there are.
        waiting: an open proposal to loosen it; None: there is none.
    """

    record: PolicyRecord
    rules: tuple[PolicyRule, ...]
    waiting: Proposal | None


def read_ruled(call: RequestContext, account: str | None) -> EffectivePolicy:
    """Read what holds at a place, and where it comes from.

    Args:
        call: needs LEDGER_READ.
        account: id, or path of names, of a population or a budget; None: the organisation's own policy.

    Raises:
        NotFoundError: there is no such population or budget.
        InsufficientScopeError: it is out of the caller's reach.
    """
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
    """The value of a rule, as a person reads it; None: nothing is said."""
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return None if value is False else value
