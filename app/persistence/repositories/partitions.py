"""Partitions: attestations of disjointness, data blocks, and parallel accounts."""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select

from app.ledger.accounts.account_records import Attestation, Block
from app.persistence.repositories.expressions import RecordTable, join_on
from app.persistence.tables import account_ancestors, accounts, data_blocks, partition_attestations
from app.persistence.tolerant_rows import Report, TolerantQuery, refuse

_ATTESTATIONS = RecordTable(partition_attestations, Attestation, {"text": "attestation"})
_BLOCKS = RecordTable(data_blocks, Block)
_STORED = (TolerantQuery(select(partition_attestations)), TolerantQuery(select(data_blocks)))

attest = _ATTESTATIONS.add
add_block = _BLOCKS.add


def attested(tx: Connection, organisation_id: str, account_ids: Sequence[str]) -> dict[str, Attestation]:
    """Get the attestations of those accounts that are parallel."""
    found = select(partition_attestations).where(
        partition_attestations.c.organisation_id == organisation_id,
        partition_attestations.c.account_id.in_(account_ids),
    )
    return {row.account_id: _ATTESTATIONS.read(row) for row in tx.execute(found)}


def blocks_of(tx: Connection, organisation_id: str, account_ids: Sequence[str]) -> dict[str, Block]:
    """Get the data blocks of those accounts that have one."""
    found = select(data_blocks).where(
        data_blocks.c.organisation_id == organisation_id, data_blocks.c.account_id.in_(account_ids)
    )
    return {row.account_id: _BLOCKS.read(row) for row in tx.execute(found)}


def list_all(
    tx: Connection, organisation_id: str | None = None, report: Report = refuse
) -> tuple[dict[tuple[str, str], Attestation], dict[tuple[str, str], Block]]:
    """List all attestations and blocks of one or every organisation, reporting damage."""
    stated, data = (query.rows(tx, organisation_id, report) for query in _STORED)
    return (
        {(row.organisation_id, row.account_id): _ATTESTATIONS.read(row) for row in stated},
        {(row.organisation_id, row.account_id): _BLOCKS.read(row) for row in data},
    )


def topmost_parallel(tx: Connection, organisation_id: str, account_ids: Iterable[str]) -> dict[str, list[str]]:
    """Find the topmost parallel accounts under each of some sequential accounts."""
    higher, upper, lower = accounts.alias("higher"), account_ancestors.alias("upper"), account_ancestors.alias("lower")
    covered = (
        select(higher.c.id)
        .join(upper, join_on(upper, higher, account_id="id"))
        .join(lower, join_on(lower, higher, ancestor_id="id"))
        .where(
            higher.c.organisation_id == organisation_id,
            higher.c.max_partitions_per_unit.is_not(None),
            upper.c.ancestor_id == account_ancestors.c.ancestor_id,
            lower.c.account_id == account_ancestors.c.account_id,
            higher.c.id != account_ancestors.c.account_id,
        )
        .correlate(account_ancestors)
        .exists()
    )
    found = (
        select(account_ancestors.c.ancestor_id, account_ancestors.c.account_id)
        .join(accounts, join_on(accounts, account_ancestors, id="account_id"))
        .where(
            account_ancestors.c.organisation_id == organisation_id,
            account_ancestors.c.ancestor_id.in_(list(account_ids)),
            accounts.c.max_partitions_per_unit.is_not(None),
            ~covered,
        )
        .order_by(account_ancestors.c.account_id)
    )
    topmost: dict[str, list[str]] = {}
    for above, below in tx.execute(found):
        topmost.setdefault(above, []).append(below)
    return topmost
