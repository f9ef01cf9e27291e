"""Everything that a ledger holds, to be compared before and after."""

from sqlalchemy import select

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import metadata

Dump = dict[str, list[tuple[object, ...]]]

_QUESTIONS = {table.name: select(table).order_by(*table.primary_key) for table in metadata.sorted_tables}


def dump(database: Database) -> Dump:
    """Every row of every table, in the order of the primary keys."""
    with database.read(ALL_TENANTS) as tx:
        return {name: [tuple(row) for row in tx.execute(question)] for name, question in _QUESTIONS.items()}


def changed(before: Dump, after: Dump) -> set[str]:
    """The names of the tables that differ."""
    return {name for name in before if before[name] != after[name]}
