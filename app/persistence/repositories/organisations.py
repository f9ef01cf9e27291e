"""Organisations, and their policies."""

from datetime import datetime
from functools import lru_cache

from sqlalchemy import Connection, insert, select, text, update

from app.ledger.hash_chain import canonical
from app.ledger.policies import Policy, facts_of, policy_of
from app.persistence.tables import organisations
from app.persistence.tolerant import json_object


def add_organisation(tx: Connection, organisation_id: str, name: str, now: datetime) -> None:
    """Append an organisation."""
    tx.execute(insert(organisations).values(id=organisation_id, name=name, created_at=now))


def find_organisation(tx: Connection, id_or_name: str) -> str | None:
    """The id of the organisation with this id or name."""
    found = select(organisations.c.id).where((organisations.c.id == id_or_name) | (organisations.c.name == id_or_name))
    return tx.execute(found).scalar()


def organisation_ids(tx: Connection) -> set[str]:
    """The ids of all organisations."""
    return set(tx.execute(select(organisations.c.id)).scalars())


def lock_names(tx: Connection) -> None:
    """Let nobody else found an organisation until the transaction ends; everything else goes on meanwhile.

    SQLite has one writer at a time anyhow.
    """
    if tx.dialect.name == "postgresql":
        tx.execute(text("LOCK TABLE organisations IN SHARE ROW EXCLUSIVE MODE"))


def lock(tx: Connection, organisation_id: str) -> None:
    """Let nobody else open accounts of this organisation until the transaction ends; charges go on meanwhile.

    Ids must be committed in their order, or a cursor would miss one.
    """
    locked = select(organisations.c.id).where(organisations.c.id == organisation_id)
    tx.execute(locked.with_for_update(key_share=True))


def policy(tx: Connection, organisation_id: str) -> tuple[Policy | None, int]:
    """An organisation's own policy, and how often it was changed."""
    found = select(organisations.c.policy, organisations.c.policy_revision).where(organisations.c.id == organisation_id)
    row = tx.execute(found).one()
    return read_policy(row.policy), row.policy_revision


def set_policy(tx: Connection, organisation_id: str, changed: Policy, revision: int) -> None:
    """Write an organisation's policy; the caller has locked the organisation, and writes it to its populations, too."""
    here = update(organisations).where(organisations.c.id == organisation_id)
    tx.execute(here.values(policy=policy_text(changed), policy_revision=revision))


def policy_text(kept: Policy | None) -> str | None:
    """A policy as it is kept."""
    return None if kept is None else canonical(facts_of(kept))


@lru_cache(maxsize=1024)
def read_policy(kept: str | None) -> Policy | None:
    """A policy that is kept."""
    return None if kept is None else policy_of(json_object(kept))
