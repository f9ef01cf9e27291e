"""Distribute a ledger over the workers of a Citus cluster."""

from typing import Final

from app.commands.console import Json, open_ledger, print_result
from app.persistence.citus import Distribution, distribute

_DONE: Final = (
    "{distributed} tables are distributed over {workers} workers by organisation, and {replicated} tables are copied "
    "to every node. Citus enforces no constraints such as these, so they were dropped: {lost}."
)


def distribute_ledger(*, as_json: Json = False) -> None:
    """Distribute a ledger's tables over the workers of a Citus cluster; a second time, it changes nothing.

    The database is a Citus coordinator. Stop every service on it first.
    """
    with open_ledger(migrated=False) as db:
        done = distribute(db)
    facts = {name: getattr(done, name) for name in ("workers", "distributed", "replicated", "lost")}
    print_result(as_json=as_json, text=_described(done), facts=facts)


def _described(done: Distribution) -> str:
    if not done.distributed and not done.replicated:
        return f"Every table is distributed over {done.workers} workers already."
    return _DONE.format(
        distributed=len(done.distributed),
        replicated=len(done.replicated),
        workers=done.workers,
        lost=", ".join(done.lost) or "none",
    )
