"""Organisations, their policies, and which of them are on this database."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Connection, Select, Table, exists, insert, select, text, true, update

from app.ledger.moves import MoveState, moving_error
from app.ledger.policies import Policy
from app.persistence.repositories.account_values import policy_text, read_policy
from app.persistence.tables import organisations


def add_organisation(tx: Connection, organisation_id: str, name: str, now: datetime) -> None:
    """Add an organisation."""
    tx.execute(insert(organisations).values(id=organisation_id, name=name, created_at=now))


_STAYING: Final = organisations.c.move_state.is_(None)

HERE: Final = _STAYING | (organisations.c.move_state == str(MoveState.LEAVING))
"""Organisations that are on this database: not those that arrive, or have left."""


def owner_is_here(table: Table) -> ColumnElement[bool]:
    """Build the condition that the organisation of a row is on this database."""
    return _owner_is(table, HERE)


def owner_stays(table: Table) -> ColumnElement[bool]:
    """Build the condition that the organisation of a row is not being moved: its rows may be changed."""
    return _owner_is(table, _STAYING)


def _owner_is(table: Table, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(organisations.c.id == table.c.organisation_id, condition)


def find_organisation(tx: Connection, id_or_name: str) -> str | None:
    """Find the id of an organisation on this database by id or name."""
    return tx.execute(_named(id_or_name).where(HERE)).scalar()


def is_known(tx: Connection, id_or_name: str) -> bool:
    """Check whether an organisation has this id or name, also one that arrives or has left."""
    return tx.execute(_named(id_or_name)).scalar() is not None


def _named(id_or_name: str) -> Select[str]:
    return select(organisations.c.id).where((organisations.c.id == id_or_name) | (organisations.c.name == id_or_name))


def organisation_name(tx: Connection, organisation_id: str) -> str:
    """Get the name of an organisation."""
    found = select(organisations.c.name).where(organisations.c.id == organisation_id)
    return str(tx.execute(found).scalar_one())


def organisation_ids(tx: Connection, among: Collection[str] | None = None) -> set[str]:
    """List the ids of the organisations on this database, among some, None: all."""
    asked = true() if among is None else organisations.c.id.in_(among)
    return set(tx.execute(select(organisations.c.id).where(HERE, asked)).scalars())


def ids_elsewhere(tx: Connection) -> set[str]:
    """List the ids of organisations that arrive or have left: their rows are not complete."""
    return set(tx.execute(select(organisations.c.id).where(~HERE)).scalars())


def lock_names(tx: Connection) -> None:
    """Block the creation of organisations until the transaction ends, and nothing else.

    SQLite has one writer at a time anyway.
    """
    if tx.dialect.name == "postgresql":
        tx.execute(text("LOCK TABLE organisations IN SHARE ROW EXCLUSIVE MODE"))


def lock(tx: Connection, organisation_id: str) -> None:
    """Block the creation of the organisation's accounts until the transaction ends, not charges.

    Ids must be committed in order, or a cursor would skip one.

    Raises:
        LedgerUnavailableError: the organisation is being moved to another database.
    """
    locked = select(organisations.c.move_state).where(organisations.c.id == organisation_id)
    if tx.execute(locked.with_for_update(key_share=True)).scalar() is not None:
        raise moving_error()


def policy(tx: Connection, organisation_id: str) -> tuple[Policy | None, int]:
    """Get an organisation's own policy and its revision."""
    found = select(organisations.c.policy, organisations.c.policy_revision).where(organisations.c.id == organisation_id)
    row = tx.execute(found).one()
    return read_policy(row.policy), row.policy_revision


def set_policy(tx: Connection, organisation_id: str, changed: Policy, revision: int) -> None:
    """Write a locked organisation's policy; the caller copies it to the populations."""
    here = update(organisations).where(organisations.c.id == organisation_id)
    tx.execute(here.values(policy=policy_text(changed), policy_revision=revision))
