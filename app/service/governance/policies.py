"""Policies of the organisation, its populations and budgets."""

from dataclasses import dataclass, replace

from sqlalchemy import Connection

from app.ledger.audit import AuditAction
from app.ledger.errors import PreconditionFailedError
from app.ledger.governance.policy_checks import sources_of
from app.ledger.governance.proposals import Proposal, ProposalKind
from app.ledger.permissions import Permission
from app.ledger.settings.policies import (
    EMPTY_POLICY,
    ORGANISATION,
    Policy,
    PolicySource,
    RuleWarning,
    effective,
    facts_of,
    loosened,
    policy_of,
    require_account_policy,
    warnings_about,
)
from app.persistence.repositories import account_writes, accounts, organisations
from app.service.accounts.lookup import find_parent
from app.service.auth.request_context import RequestContext
from app.service.change_control import propose_once, require_if_match
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
    def account_id(self) -> str | None:
        """Id of its account; None: it is the organisation's."""
        return None if self.path == ORGANISATION else self.subject

    def loosened(self, policy: Policy) -> tuple[str, ...]:
        """List the rules that are looser in another policy."""
        return loosened(self.policy, policy, of_organisation=self.account_id is None)

    def facts(self) -> dict[str, object]:
        """Build the audit payload."""
        return {"policy": facts_of(self.policy), "revision": self.revision}


def read_policy(context: RequestContext, account: str | None) -> PolicyRecord:
    """Get the policy of an account or, for None, the organisation."""
    with context.read() as tx:
        return find_policy(tx, context, None if account is None else find_parent(tx, context, account).account.id)


def change_policy(
    context: RequestContext, account: str | None, policy: Policy, reason: str, tag: str | None
) -> PolicyRecord | Proposal:
    """Replace the policy of an account or, for None, the organisation, or propose the new one if it loosens a rule.

    `tag` is the value of If-Match. An equal policy is neither written nor recorded. A repeated request of the caller
    returns the same proposal.

    Raises:
        PreconditionRequiredError: If-Match is missing.
        PreconditionFailedError: the policy has changed.
        InvalidInputError: another looser policy is proposed already, or a rule is only valid for the organisation.
    """
    context.require_permission(Permission.POLICY_MANAGE, whole_organisation=account is None)
    if account is not None:
        require_account_policy(policy)

    def change(tx: Connection) -> PolicyRecord | Proposal:
        before = find_policy(tx, context, None if account is None else find_parent(tx, context, account).account.id)
        require_if_match("policy", before.tag, tag, policy_revision=before.revision)
        if before.policy == policy:
            return before
        if before.loosened(policy):
            return _propose(tx, context, before, policy, reason)
        return _apply(tx, context, before, policy, reason)

    return run_effect(context, change)


def approve_policy(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Apply a proposed policy; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: the policy has changed since the proposal.
    """
    account, facts = proposal.account_id, proposal.proposed
    before = find_policy(tx, context, account)
    if before.revision != facts["revision"]:
        raise PreconditionFailedError(
            "The policy was changed since this was proposed; reject the proposal, and let it be proposed anew.",
            policy_revision=before.revision,
        )
    _apply(tx, context, before, policy_of(facts["policy"]), proposal.reason)


def _propose(tx: Connection, context: RequestContext, before: PolicyRecord, policy: Policy, reason: str) -> Proposal:
    facts = {"policy": facts_of(policy), "revision": before.revision}
    return propose_once(tx, context, ProposalKind.POLICY, before.account_id, facts, reason, before=before.facts())


def _apply(tx: Connection, context: RequestContext, before: PolicyRecord, policy: Policy, reason: str) -> PolicyRecord:
    """Write a policy and its audit event; the organisation is locked."""
    if before.account_id is None:
        organisations.set_policy(tx, context.organisation_id, policy, before.revision + 1)
        for population in accounts.populations_of(tx, context.organisation_id):  # copies for the step path
            changed = replace(population, organisation_policy=policy, version=population.version + 1)
            account_writes.set_policy(tx, context.organisation_id, changed, context.now)
    else:
        own = accounts.path_of(tx, context.organisation_id, before.account_id)[-1].account
        changed = replace(own, policy=policy, policy_revision=own.policy_revision + 1, version=own.version + 1)
        account_writes.set_policy(tx, context.organisation_id, changed, context.now)
    after = find_policy(tx, context, before.account_id)
    context.record(tx, AuditAction.POLICY_REPLACED, after.subject, before.facts(), after.facts(), reason)
    return after


def find_policy(tx: Connection, context: RequestContext, account_id: str | None) -> PolicyRecord:
    """Get the policy of an account or, for None, the organisation."""
    if account_id is None:
        policy, revision = organisations.policy(tx, context.organisation_id)
        said = policy or EMPTY_POLICY
        holds = effective((PolicySource(ORGANISATION, said),))
        warnings = warnings_about(said, holds, EMPTY_POLICY)
        return PolicyRecord(context.organisation_id, ORGANISATION, said, holds, revision, warnings)
    path = [record.account for record in accounts.path_of(tx, context.organisation_id, account_id)]
    own, sources = path[-1], sources_of(path)
    said, holds = own.policy or EMPTY_POLICY, effective(sources)
    above = effective(tuple(source for source in sources if source.path != own.path))
    return PolicyRecord(own.id, own.path, said, holds, own.policy_revision, warnings_about(said, holds, above))
