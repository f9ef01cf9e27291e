"""Organisations and their policies."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, insert, select, text, true, update

from app.ledger.governance.settings import POLICY
from app.ledger.settings.policy_rules import Policy
from app.persistence.repositories.account_values import read_policy
from app.persistence.tables import organisations


def add_organisation(tx: Connection, organisation_id: str, name: str, now: datetime) -> None:
    """Add an organisation."""
    tx.execute(insert(organisations).values(id=organisation_id, name=name, created_at=now))


def find_organisation(tx: Connection, id_or_name: str) -> str | None:
    """Find the id of an organisation by id or name."""
    named = (organisations.c.id == id_or_name) | (organisations.c.name == id_or_name)
    return tx.execute(select(organisations.c.id).where(named)).scalar()


def organisation_name(tx: Connection, organisation_id: str) -> str:
    """Get the name of an organisation."""
    found = select(organisations.c.name).where(organisations.c.id == organisation_id)
    return str(tx.execute(found).scalar_one())


def organisation_ids(tx: Connection, among: Collection[str] | None = None) -> set[str]:
    """List the ids of the organisations, among some, None: all."""
    asked = true() if among is None else organisations.c.id.in_(among)
    return set(tx.execute(select(organisations.c.id).where(asked)).scalars())


def lock_names(tx: Connection) -> None:
    """Block the creation of organisations until the transaction ends, and nothing else.

    SQLite has one writer at a time anyway.
    """
    if tx.dialect.name == "postgresql":
        tx.execute(text("LOCK TABLE organisations IN SHARE ROW EXCLUSIVE MODE"))


def lock(tx: Connection, organisation_id: str) -> None:
    """Block the creation of the organisation's accounts until the transaction ends, not charges.

    Ids must be committed in order, or a cursor would skip one.
    """
    locked = select(organisations.c.id).where(organisations.c.id == organisation_id)
    tx.execute(locked.with_for_update(key_share=True))


def policy(tx: Connection, organisation_id: str) -> tuple[Policy | None, int]:
    """Get an organisation's own policy and its revision."""
    found = select(organisations.c.policy, organisations.c.policy_revision).where(organisations.c.id == organisation_id)
    row = tx.execute(found).one()
    return read_policy(row.policy), row.policy_revision


def set_policy(tx: Connection, organisation_id: str, changed: Policy | None, revision: int) -> None:
    """Write a locked organisation's policy; the caller copies it to the populations."""
    here = update(organisations).where(organisations.c.id == organisation_id)
    tx.execute(here.values(policy=POLICY.text(changed), policy_revision=revision))
