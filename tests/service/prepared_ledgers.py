"""Small ledgers whose rows are tampered with: each is made once, and its file copied for a test."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.persistence.database import Database
from tests.api.trainer import LOUD as WIRED
from tests.api.trainer import QUIET, Trainer, counted, gaussian, hired
from tests.conftest import SAMPLED, Furnish, Ledger, furnished

NOISE, LOUD, OTHER = gaussian(60.0), gaussian(50.0), gaussian(70.0)
LIMIT = {"epsilon": 1.0, "delta": 1e-5}
ATTESTED = {"composition": "parallel", "attestation": "Each patient is in one hospital only."}
STEP = {"type": "poisson_sampled", "sampling_probability": 0.02, "event": gaussian(1.5)}


def charge(ledger: Ledger) -> None:
    """Three runs under two budgets; the first has five decisions: admitted, refused, and three more admitted."""
    ledger.population(planned=[{"event": NOISE, "count": 5}])
    ledger.budget()
    ledger.budget("planned", planned=[{"event": SAMPLED}])
    several = [{"event": NOISE}, {"event": SAMPLED, "count": 3}, {"event": LOUD}]
    run, huge = ledger.run(), {"event": NOISE, "count": 10**6}
    for number, body in enumerate([{"count": 4}, huge, {"event": NOISE, "count": 2}, {"events": several}, {}]):
        ledger.post(f"/v1/runs/{run}/steps", body, Idempotency_Key=f"key-{number}")
    other = ledger.run("mimic/planned", name="other", limit={"epsilon": 1.0, "delta": 1e-5})
    ledger.post(f"/v1/runs/{other}/steps", {"count": 7})
    ledger.run("mimic/planned", name="idle", event=OTHER)


def charge_repeated_events(ledger: Ledger) -> None:
    """One decision, whose second event comes three times: row 1 has 4 steps and the repeats [3,[5,2]]."""
    items = zip((60.0, 70.0, 80.0, 70.0, 90.0, 70.0), (1, 1, 3, 1, 1, 2), strict=True)
    events = counted(*((gaussian(noise), count) for noise, count in items))
    assert hired(ledger).steps(events=events).status_code == 200


def reserve(ledger: Ledger) -> Trainer:
    """A run with two charged steps and an active plan of 5 loud and 3 quiet steps, 2 of the loud ones used."""
    trainer = hired(ledger, limit={"epsilon": 1.0, "delta": 1e-6})
    assert trainer.steps(count=2).status_code == 200
    trainer.reserved((WIRED, 5), (QUIET, 3))
    assert trainer.steps(count=2).json()["reservation"] is not None
    return trainer


def lower_limit(ledger: Ledger) -> Trainer:
    """A run with a plan of which a lowered limit has revoked a part."""
    trainer = hired(ledger)
    trainer.reserved((WIRED, 160))
    body = {"limit": {"epsilon": 0.5, "delta": 1e-5}, "reason": "the study was narrowed"}
    assert ledger.post(f"/v1/accounts/{trainer.path()[1].id}/limit", body, If_Match="*").status_code == 200
    return trainer


def compose(ledger: Ledger) -> None:
    """Two sites of a group, the second with more spent, by a run that charges a clinic as well; and a plan."""
    ledger.population("group", limit=LIMIT, **ATTESTED)
    ledger.population("clinic", limit=LIMIT)
    for name, parent in (("north", "group"), ("south", "group"), ("team", "clinic")):
        ledger.budget(name, parent, limit=LIMIT)
    north = ledger.run("group/north", name="alone", event=NOISE)
    body = {"name": "both", "budgets": ["group/south", "clinic/team"], "event": NOISE}
    both = ledger.post("/v1/runs", body).json()["id"]
    for run, count in ((north, 20), (both, 50)):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": count}).status_code == 200
    assert Trainer(ledger, north).reserve((NOISE, 40)).status_code == 201


def plan_accounts(ledger: Ledger) -> None:
    """A population and a budget with plans, three runs, one with a plan of its own, and an active reservation."""
    limit: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5}
    ledger.population(planned=[{"event": QUIET, "count": 20}, {"event": STEP}])
    ledger.budget(planned=[{"event": STEP}], limit=limit)
    first, second = (Trainer(ledger, ledger.run(name=name, event=STEP)) for name in ("first", "second"))
    own = Trainer(ledger, ledger.run(name="own", event=STEP, limit=limit))
    assert first.steps(count=5).status_code == second.steps(count=7).status_code == 200
    first.reserved((STEP, 10))
    assert first.steps(count=4).status_code == own.steps(count=2).status_code == 200


def refuse(ledger: Ledger) -> None:
    """A population and a budget, and a limit that only a refusal names."""
    ledger.population(limit=LIMIT)
    ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
    body = {"event": NOISE, "count": 10**6}
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", body).json()["binding_account_path"] == "mimic"


PREPARED: dict[str, Furnish] = {"charged": charge, "repeats": charge_repeated_events, "reserved": reserve}
PREPARED |= {"lowered": lower_limit, "composed": compose, "planned": plan_accounts, "refused": refuse}


@contextmanager
def copied(name: str, folder: Path) -> Iterator[Database]:
    """The database of a copy of a prepared ledger."""
    _, source = furnished("sqlite", PREPARED[name])
    shutil.copy(source, folder / "ledger.db")
    database = Database(f"sqlite:///{folder / 'ledger.db'}")
    yield database
    database.dispose()
