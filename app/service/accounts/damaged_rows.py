"""Reads of accounts that tolerate damaged rows."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from app.ledger.accounts.account_records import AccountRecord
from app.persistence.repositories import accounts
from app.persistence.tolerant_rows import DAMAGED

T = TypeVar("T")


def read_tolerating_damage(
    tx: Connection, organisation_id: str, ids: Sequence[str], make: Callable[[AccountRecord], T]
) -> tuple[dict[str, T], list[str]]:
    """Apply `make` to accounts; return the results by id, and the ids of damaged accounts.

    An account is damaged if its row cannot be read, or if `make` raises one of `DAMAGED`.
    """
    try:
        return {each.account.id: make(each) for each in accounts.read_many(tx, organisation_id, ids)}, []
    except DAMAGED:
        if len(ids) <= 1:
            return {}, list(ids)
    middle = len(ids) // 2
    first, second = (read_tolerating_damage(tx, organisation_id, half, make) for half in (ids[:middle], ids[middle:]))
    return first[0] | second[0], first[1] + second[1]
