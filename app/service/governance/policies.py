"""Policies of the organisation, its populations and budgets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account_records import AccountRecord
from app.ledger.governance.policy_checks import sources_of
from app.ledger.governance.settings import POLICY
from app.ledger.settings.policies import (
    EMPTY_POLICY,
    ORGANISATION,
    PolicySource,
    RuleWarning,
    effective,
    require_account_policy,
    warnings_about,
)
from app.ledger.settings.policy_rules import Policy
from app.persistence.repositories import account_writes, organisations
from app.service.auth.request_context import RequestContext
from app.service.setting_changes import SettingHandler, SettingRecord, write_in_account


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord(SettingRecord[Policy]):
    """A policy with its effect.

    Args:
        effective: strictest combination with all policies above.
        warnings: rules with less effect than they seem to have.
    """

    effective: Policy
    warnings: tuple[RuleWarning, ...]


def find_policy(tx: Connection, context: RequestContext, path: Sequence[AccountRecord]) -> PolicyRecord:
    """Get the policy of the last account of a path or, for an empty one, the organisation."""
    if path:
        own, sources = path[-1].account, sources_of([record.account for record in path])
        subject, policy, revision = own.id, own.policy, own.policy_revision
        above = effective(tuple(source for source in sources if source.path != own.path))
    else:
        subject, above = context.organisation_id, EMPTY_POLICY
        policy, revision = organisations.policy(tx, subject)
        sources = (PolicySource(ORGANISATION, policy or EMPTY_POLICY),)
    said, holds = policy or EMPTY_POLICY, effective(sources)
    return PolicyRecord(
        *(subject, path, said, revision, f'"{subject}-policy-{revision}"'),
        effective=holds,
        warnings=warnings_about(said, holds, above),
    )


def _write(tx: Connection, context: RequestContext, before: PolicyRecord, policy: Policy) -> PolicyRecord:
    if before.accounts:
        return find_policy(tx, context, write_in_account(tx, context, POLICY, before, policy))
    organisations.set_policy(tx, context.organisation_id, policy, before.revision + 1)
    account_writes.copy_policy(tx, context.organisation_id, policy, context.now)
    return find_policy(tx, context, ())


def _check(_: Connection, __: RequestContext, before: PolicyRecord, policy: Policy) -> None:
    if before.accounts:
        require_account_policy(policy)


POLICIES: Final = SettingHandler(POLICY, find_policy, _write, check=_check, alone=lambda *_: False)
