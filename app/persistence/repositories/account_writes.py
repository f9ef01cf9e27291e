"""Create accounts, and write their limits and policies."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Update, insert, select, update

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import Population
from app.ledger.accounts.alerts import AlertSettings
from app.ledger.accounts.metadata import Metadata
from app.ledger.admission.composition import budgets_of
from app.ledger.governance.settings import POLICY, Setting
from app.ledger.names import name_skeleton
from app.ledger.settings.policy_rules import Policy
from app.persistence.repositories import account_metadata, balances, locks
from app.persistence.repositories.account_values import SAME_NAMES, limit_values, planned_text, weights_text
from app.persistence.repositories.expressions import owned_by, values_of
from app.persistence.tables import account_ancestors, accounts, populations, run_budgets


def add(
    tx: Connection,
    organisation_id: str,
    account: Account,
    ancestors: Sequence[Account],
    population: Population | None,
    now: datetime,
    *,
    metadata: Metadata,
) -> int:
    """Add an unspent account under its ancestors, given by depth and id; return its number at its path.

    `population` is set for populations only.
    """
    tx.execute(
        insert(accounts).values(
            organisation_id=organisation_id,
            **values_of(account, (*SAME_NAMES, "kind")),
            name_skeleton=None if account.kind is AccountKind.RUN else name_skeleton(account.name),
            **limit_values(account.limit),
            planned_events=planned_text(account.planned),
            filter_weights=weights_text(account.weights),
            plan_usage=balances.usage_text(account.spent.used, account.held.used),
            max_partitions_per_unit=account.partitions_per_unit,
            opens_at=account.window.opens_at,
            closes_at=account.window.closes_at,
            policy=POLICY.text(account.policy),
            organisation_policy=POLICY.text(account.organisation_policy),
            created_at=now,
            updated_at=now,
        )
    )
    balances.add(tx, organisation_id, account)
    number = account_metadata.add(tx, organisation_id, account, metadata)
    if population is not None:
        tx.execute(
            insert(populations).values(
                organisation_id=organisation_id,
                account_id=account.id,
                privacy_unit=population.privacy_unit,
                neighboring_relation=str(population.relation),
                size=population.size,
            )
        )
    tx.execute(
        insert(account_ancestors),
        [
            {
                "organisation_id": organisation_id,
                "account_id": account.id,
                "ancestor_id": ancestor.id,
                "depth": ancestor.depth,
            }
            for ancestor in (*ancestors, account)
        ],
    )
    if account.kind is AccountKind.RUN:
        charged = enumerate(budgets_of((*ancestors, account)))
        tx.execute(
            insert(run_budgets),
            [
                {"organisation_id": organisation_id, "run_id": account.id, "position": position, "budget_id": budget.id}
                for position, budget in charged
            ],
        )
    return number


def set_limit(tx: Connection, organisation_id: str, account: Account, now: datetime) -> None:
    """Write an account's limit, revision and filter weights; the caller has locked its path."""
    assert account.limit is not None, "only a limit can be changed"
    tx.execute(
        _changed(organisation_id, account, now).values(
            **limit_values(account.limit),
            limit_revision=account.limit_revision,
            filter_weights=weights_text(account.weights),
        )
    )


def set_weights(tx: Connection, organisation_id: str, changed: Sequence[Account]) -> None:
    """Write the filter weights of locked accounts, with new versions that invalidate caches; there was no activity."""
    for account in changed:
        weights, version = weights_text(account.weights), accounts.c.version + 1
        this = owned_by(accounts, organisation_id, id=account.id)
        tx.execute(update(accounts).where(this).values(filter_weights=weights, version=version))


def add_version(tx: Connection, organisation_id: str, account_ids: Sequence[str]) -> None:
    """Increase the versions of locked accounts to invalidate caches.

    Their time of change stays, since there was no activity.
    """
    tx.execute(
        update(accounts)
        .where(accounts.c.organisation_id == organisation_id, accounts.c.id.in_(account_ids))
        .values(version=accounts.c.version + 1)
    )


def set_setting(tx: Connection, organisation_id: str, setting: Setting[Any], account: Account, now: datetime) -> None:
    """Write a setting that has columns of its names, and its revision; the caller has locked the account's path."""
    value, revision = getattr(account, setting.name), getattr(account, setting.revision_name)
    columns = {setting.name: setting.text(value), setting.revision_name: revision}
    tx.execute(_changed(organisation_id, account, now).values(columns))


def copy_policy(tx: Connection, organisation_id: str, policy: Policy | None, now: datetime) -> None:
    """Copy the organisation's policy to its populations, which are locked in the global order, for the step path."""
    found = select(populations.c.account_id).where(populations.c.organisation_id == organisation_id)
    ids = list(tx.execute(found).scalars())
    locks.lock(tx, organisation_id, ids)
    copied = update(accounts).where(accounts.c.organisation_id == organisation_id, accounts.c.id.in_(ids))
    version = accounts.c.version + 1
    tx.execute(copied.values(organisation_policy=POLICY.text(policy), version=version, updated_at=now))


def set_alert_settings(
    tx: Connection, organisation_id: str, account: Account, settings: AlertSettings, now: datetime
) -> None:
    """Write a locked account's alert settings, with a new version that invalidates caches."""
    changed = _changed(organisation_id, replace(account, version=account.version + 1), now)
    thresholds = json.dumps(settings.thresholds)
    tx.execute(changed.values(alert_thresholds=thresholds, forecast_days=settings.forecast_days))


def _changed(organisation_id: str, account: Account, now: datetime) -> Update:
    """Build an update of a changed account, with its version and the time."""
    this = owned_by(accounts, organisation_id, id=account.id)
    return update(accounts).where(this).values(version=account.version, updated_at=now)
