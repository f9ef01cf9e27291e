"""Background work of an application in this process: it is left out.

Each kind of work opens a connection of its own, which on PostgreSQL takes longer than most tests' requests. It would
also change rows between two looks at them: an expired reservation ends, a delivery is tried. Tests of such work call
it, and real servers do it.
"""

import asyncio

from app.service import ledger_store
from app.service.monitoring import database_collector

WORK = ((ledger_store, "deliver"), (ledger_store, "run_maintenance"), (database_collector, "attempt"))


def leave_out() -> None:
    """Let no such work begin."""
    for module, name in WORK:
        vars(module)[name] = _wait_forever


async def _wait_forever(*_: object) -> None:
    await asyncio.Event().wait()
