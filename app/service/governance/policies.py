"""Policies of the organisation, its populations and budgets."""

from dataclasses import dataclass, replace

from sqlalchemy import Connection

from app.ledger.accounts import Account
from app.ledger.audit import AuditAction
from app.ledger.errors import InvalidInputError, PreconditionFailedError
from app.ledger.hash_chain import canonical
from app.ledger.permissions import Permission
from app.ledger.policies import (
    EMPTY_POLICY,
    ORGANISATION,
    Policy,
    PolicySource,
    effective,
    facts_of,
    loosened,
    policy_of,
)
from app.ledger.policy_checks import sources_of
from app.ledger.policy_warnings import RuleWarning, warnings_about
from app.ledger.proposals import Proposal, ProposalKind
from app.persistence.repositories import account_writes, accounts, organisations
from app.service.accounts.lookup import find_parent
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.governance.change_control import open_proposals, propose, require_if_match, require_none_open
from app.service.idempotency import run_effect


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy with its effect.

    Args:
        subject: id of the account or the organisation.
        path: of the account, or "organisation".
        effective: strictest combination with all policies above.
        revision: number of changes.
        warnings: rules with less effect than they seem to have.
    """

    subject: str
    path: str
    policy: Policy
    effective: Policy
    revision: int
    warnings: tuple[RuleWarning, ...] = ()

    @property
    def tag(self) -> str:
        """Entity tag of the policy."""
        return f'"{self.subject}-policy-{self.revision}"'

    @property
    def of_organisation(self) -> bool:
        """Whether it is the organisation's policy."""
        return self.path == ORGANISATION

    def loosened(self, policy: Policy) -> tuple[str, ...]:
        """List the rules that are looser in another policy."""
        return loosened(self.policy, policy, of_organisation=self.of_organisation)


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A request to replace a policy, with the value of If-Match."""

    account: str | None
    policy: Policy
    reason: str
    tag: str | None


def read_policy(context: RequestContext, account: str | None) -> PolicyRecord:
    """Get the policy of an account or, for None, the organisation."""
    with context.read() as tx:
        return find_policy(tx, context, None if account is None else find_parent(tx, context, account).account.id)


def change_policy(context: RequestContext, request: PolicyRequest) -> PolicyRecord | Proposal:
    """Replace a policy, or propose the new one if it loosens a rule.

    An equal policy is neither written nor recorded. A repeated request of the caller returns the same proposal.

    Raises:
        PreconditionRequiredError: If-Match is missing.
        PreconditionFailedError: the policy has changed.
        InvalidInputError: another looser policy is proposed already, or a rule is only valid for the organisation.
    """
    if request.account is None:
        context.require_organisation_scope(Permission.POLICY_MANAGE)
    else:
        context.require_permission(Permission.POLICY_MANAGE)
        _require_of_accounts(request.policy)

    def change(tx: Connection, _: PrecomputedCosts) -> PolicyRecord | Proposal:
        account = None if request.account is None else find_parent(tx, context, request.account).account.id
        before = find_policy(tx, context, account)
        require_if_match("policy", before.tag, request.tag, policy_revision=before.revision)
        if before.policy == request.policy:
            return before
        if before.loosened(request.policy):
            return _propose(tx, context, before, request)
        return _apply(tx, context, before, request.policy, request.reason)

    return run_effect(context, change)


def _require_of_accounts(policy: Policy) -> None:
    """Refuse a rule that is only valid for the organisation."""
    if policy.approvers_to_create_population is not None:
        raise InvalidInputError(
            "`approvers_to_create_population` belongs to the organisation's policy: a population opens no population."
        )


def approve_policy(tx: Connection, context: RequestContext, proposal: Proposal, ready: PrecomputedCosts) -> None:
    """Apply a proposed policy; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: the policy has changed since the proposal.
    """
    del ready
    account, facts = proposal.account_id, proposal.proposed
    before = find_policy(tx, context, account)
    if before.revision != facts["revision"]:
        raise PreconditionFailedError(
            "The policy was changed since this was proposed; reject the proposal, and let it be proposed anew.",
            policy_revision=before.revision,
        )
    _apply(tx, context, before, policy_of(facts["policy"]), proposal.reason)


def _propose(tx: Connection, context: RequestContext, before: PolicyRecord, request: PolicyRequest) -> Proposal:
    account = None if before.of_organisation else before.subject
    facts = {"policy": facts_of(request.policy), "revision": before.revision}
    for waiting in open_proposals(tx, context, account, {ProposalKind.POLICY}, limit=1):
        if (waiting.payload, waiting.proposed_by) == (canonical(facts), context.principal.actor):
            return waiting
    require_none_open(tx, context, account, {ProposalKind.POLICY})
    was = {"policy": facts_of(before.policy), "revision": before.revision}
    return propose(tx, context, ProposalKind.POLICY, account, facts, request.reason, before=was)


def _apply(tx: Connection, context: RequestContext, before: PolicyRecord, policy: Policy, reason: str) -> PolicyRecord:
    """Write a policy and its audit event; the organisation is locked."""
    after = (
        _set_organisation_policy(tx, context, policy) if before.of_organisation else _set(tx, context, before, policy)
    )
    was, now = ({"policy": facts_of(each.policy), "revision": each.revision} for each in (before, after))
    context.record(tx, AuditEvent(AuditAction.POLICY_REPLACED, after.subject, was, now, reason))
    return after


def find_policy(tx: Connection, context: RequestContext, account_id: str | None) -> PolicyRecord:
    """Get the policy of an account or, for None, the organisation."""
    return _organisation_policy(tx, context) if account_id is None else _of_account(_path(tx, context, account_id))


def _organisation_policy(tx: Connection, context: RequestContext) -> PolicyRecord:
    policy, revision = organisations.policy(tx, context.organisation_id)
    said = policy or EMPTY_POLICY
    holds = effective((PolicySource(ORGANISATION, said),))
    warnings = warnings_about(said, holds, EMPTY_POLICY)
    return PolicyRecord(context.organisation_id, ORGANISATION, said, holds, revision, warnings)


def _path(tx: Connection, context: RequestContext, account_id: str) -> list[Account]:
    return [record.account for record in accounts.path_of(tx, context.organisation_id, account_id)]


def _of_account(path: list[Account]) -> PolicyRecord:
    own = path[-1]
    said, sources = own.policy or EMPTY_POLICY, sources_of(path)
    holds = effective(sources)
    above = effective(tuple(source for source in sources if source.path != own.path))
    warnings = warnings_about(said, holds, above)
    return PolicyRecord(own.id, own.path, said, holds, own.policy_revision, warnings)


def _set(tx: Connection, context: RequestContext, before: PolicyRecord, policy: Policy) -> PolicyRecord:
    *above, own = _path(tx, context, before.subject)
    changed = replace(own, policy=policy, policy_revision=own.policy_revision + 1, version=own.version + 1)
    account_writes.set_policy(tx, context.organisation_id, changed, context.now)
    return _of_account([*above, changed])


def _set_organisation_policy(tx: Connection, context: RequestContext, policy: Policy) -> PolicyRecord:
    """Write the organisation's policy, copied to each population for the step path."""
    revision = organisations.policy(tx, context.organisation_id)[1] + 1
    organisations.set_policy(tx, context.organisation_id, policy, revision)
    for population in accounts.populations_of(tx, context.organisation_id):
        changed = replace(population, organisation_policy=policy, version=population.version + 1)
        account_writes.set_policy(tx, context.organisation_id, changed, context.now)
    return _organisation_policy(tx, context)
