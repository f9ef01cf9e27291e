"""Readiness: what keeps a service from deciding, and what somebody has to look after."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.persistence.write_probe import Fault, Rehearsal
from app.service import readiness
from app.service.background import TaskRegistry
from tests import postgres
from tests.api.conftest import SeededLedger, furnish
from tests.conftest import need_postgresql, new_database
from tests.ledgers import open_ledger
from tests.service.tampering import TEAM, lift, shift_curve, tampering


def _ready(seeded: SeededLedger) -> dict[str, Any]:
    state: Any = seeded.ledger.http.app.state
    state.integrity.check()
    return dict(seeded.ledger.http.get("/readyz").raise_for_status().json())


def test_accounts_that_are_stopped_are_told_and_the_rest_is_served(seeded: SeededLedger) -> None:
    assert _ready(seeded) == {"status": "ok"}
    why = "Accounts that `verify` has stopped, until two persons lift their quarantine: 1."
    for change, sound in ((-1, False), (1, True)):
        with tampering(seeded.ledger.database) as tx:
            shift_curve(tx, TEAM, change)
        assert seeded.ledger.post("/v1/verifications", None, "auditor").json()["sound"] == sound
        assert _ready(seeded) == {"status": "degraded", "integrity_warnings": [why]}
    lift(seeded.ledger, TEAM)
    assert _ready(seeded) == {"status": "ok"}


def test_worker_that_takes_no_step_is_told_and_served(seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = {"db1:5432": Fault.SILENT}
    monkeypatch.setattr(readiness, "rehearse_everywhere", lambda _: Rehearsal(None, workers))
    told = {"db1:5432": "The database does not answer."}
    assert _ready(seeded) == {"status": "degraded", "unavailable_workers": told}


CHAIN = "Runs whose chain does not end with their last decision: 1."
SIGNED = "Organisations whose history is not the one that was signed last: 1."
DAMAGES = {
    "UPDATE runs SET chain_head = zeroblob(32)": CHAIN,
    "DELETE FROM decisions": CHAIN,
    "UPDATE runs SET decision_count = decision_count + 1": CHAIN,
    "UPDATE checkpoints SET audit_head = zeroblob(32)": SIGNED,
    "DELETE FROM audit_entries": SIGNED,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_history_is_a_warning(seeded: SeededLedger, damage: str) -> None:
    assert seeded.ledger.post("/v1/checkpoints", None, "auditor").status_code == 201
    assert _ready(seeded) == {"status": "ok"}
    with tampering(seeded.ledger.database) as tx:
        tx.exec_driver_sql(damage)
    assert _ready(seeded)["integrity_warnings"] == [DAMAGES[damage]]


def test_background_task_that_ended_is_reported(tmp_path: Path) -> None:
    with open_ledger(tmp_path, background_work=True) as ledger:
        background: TaskRegistry = ledger.http.app.state.background
        assert set(background.names) >= {"keys", "maintenance", "deliveries", "integrity"}

        async def fail() -> None:
            raise AssertionError("a bug")

        ledger.http.portal.call(background.start, "maintenance", fail())
        ledger.http.portal.call(asyncio.sleep, 0)
        assert ledger.http.get("/readyz").json() == {"status": "degraded", "stopped_tasks": ["maintenance"]}


def test_database_of_an_older_version_is_not_ready(seeded: SeededLedger) -> None:
    for change in ("UPDATE alembic_version SET version_num = '0000'", "DELETE FROM alembic_version"):
        with tampering(seeded.ledger.database) as tx:
            tx.exec_driver_sql(change)
        reply = seeded.ledger.http.get("/readyz")
        assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable")
        assert "epsilon-ledger migrate" in reply.json()["detail"]


@pytest.mark.postgresql
def test_ledger_whose_table_has_another_owner_is_not_ready(tmp_path: Path) -> None:
    """A role without row security takes steps; one that may not write a table does not."""
    need_postgresql()
    with new_database("postgresql", tmp_path) as url:
        name = url.rpartition("/")[2]
        postgres.shared().execute(f"ALTER DATABASE {name} SET row_security = off")
        with open_ledger(tmp_path, url) as ledger:
            seeded = furnish(ledger)
            postgres.shared().execute("ALTER TABLE decisions OWNER TO ledger", name)
            assert seeded.steps().status_code == 503
            assert ledger.http.get("/readyz").json()["detail"] == Fault.FORBIDDEN
            assert "epsilon_ledger_ready 0.0" in ledger.http.get("/metrics").text
            postgres.shared().execute(f"ALTER TABLE decisions OWNER TO {postgres.SERVICE}", name)
            assert _ready(seeded) == {"status": "ok"}
            assert seeded.steps().status_code == 200
