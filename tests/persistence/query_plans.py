"""How the databases find what is asked for."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event, select, text

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import runs
from tests.conftest import Ledger

Ask = Callable[[Connection, str], object]


def plans(ledger: Ledger, ask: Ask) -> list[str]:
    """How each statement finds rows; what PostgreSQL may do with small tables only is forbidden it."""
    asked: list[tuple[str, Any]] = []

    def note(*given: Any) -> None:  # noqa: ANN401 - as SQLAlchemy hands it on
        asked.append((given[2], given[3]))

    with ledger.database.read(ALL_TENANTS) as tx:
        organisation = tx.execute(select(runs.c.organisation_id)).scalar_one()
    with ledger.database.read(organisation) as tx:
        event.listen(tx, "before_cursor_execute", note)
        ask(tx, organisation)
        event.remove(tx, "before_cursor_execute", note)
        if tx.dialect.name == "postgresql":
            for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "sort"):
                tx.execute(text(f"SET LOCAL enable_{way} = off"))
        explain = "EXPLAIN QUERY PLAN" if tx.dialect.name == "sqlite" else "EXPLAIN (COSTS OFF)"
        found = [tx.exec_driver_sql(f"{explain} {statement}", parameters).all() for statement, parameters in asked]
    return ["\n".join(str(row[-1]) for row in rows) for rows in found]
