"""A ledger that has every kind of row: what is copied, backed up or moved must come out as it went in."""

from datetime import UTC, datetime
from typing import Any

import httpx2

from app.service.alerts.forecasts import record_usage_snapshots
from app.service.audit.checkpoints import sign_due
from app.service.keys.first_admin import create_sign_in_link
from app.service.signing.signatures import signer_of
from tests.api.trainer import HUGE, LOUD, QUIET, Trainer, counted, hired
from tests.conftest import Ledger, signing_key
from tests.ledgers import schedule_blocks

SAMPLED = {"type": "poisson_sampled", "sampling_probability": 0.01, "event": QUIET}
LINK = {"title": "MLflow", "url": "https://mlflow.example/"}
RANDOMIZED = {"type": "epsilon_delta", "epsilon": 0.01, "delta": 1e-9}
"""An event with a delta of its own."""


def fill(ledger: Ledger) -> Trainer:
    """Every table gets rows, every outcome and state its own; returns a trainer whose run has an open reservation."""
    trainer = hired(ledger)
    hook = ledger.post("/v1/receivers", {"url": "https://alerts.example/", "account": "mimic"})
    for act in ("rotate", "test"):
        _answered(201, ledger.post(f"/v1/receivers/{hook.json()['id']}/{act}", None))
    _answered(200, trainer.steps(count=2))
    _answered(201, ledger.post("/v1/verifications", None, "auditor"))
    _answered(403, trainer.steps("refused", event=HUGE))
    _answered(201, trainer.act("attempts", {}))
    several = [*counted((QUIET, 3), (SAMPLED, 10)), {"event": RANDOMIZED}, *counted((SAMPLED, 2))]
    _answered(200, trainer.steps("several", events=several, attempt=2))
    for how, executed in (("commit", 2), ("void", None)):
        reserved = trainer.reserved((LOUD, 3), (QUIET, 2), attempt=2)
        if executed is not None:
            _answered(200, trainer.steps(attempt=2))
        _answered(200, trainer.end(reserved, how, executed))
    ledger.population("überall", neighboring_relation="replace_one", size=1000)
    ledger.budget("all", "überall")
    lost = _employed(ledger, "überall/all", "lost")
    assert lost.steps(event=HUGE, mode="report").json()["overdrawn"]
    ledger.population("blocks", composition="parallel", attestation="by month")
    _answered(200, schedule_blocks(ledger, "blocks", prefix="b-"))
    block = {"data_from": "2026-05-01T00:00:00Z", "data_to": "2026-06-01T00:00:00Z"}
    ledger.budget("may", "blocks", block=block, opens_at="2026-06-01T00:00:00Z")
    both = ledger.post("/v1/runs", {"name": "both", "budgets": ["blocks/may", "mimic/icu-team"], "event": LOUD})
    _answered(200, Trainer(ledger, both.json()["id"]).steps())
    sweep = {"mean": 1.5, "events": [{"event": LOUD, "count": 2}]}
    paid = {"name": "sweep", "budget": "mimic/icu-team", "charging_mode": "repeat_and_select", "trials": sweep}
    _answered(201, ledger.post("/v1/experiments", paid))
    raised = {"limit": {"epsilon": 9.0, "delta": 1e-6}, "reason": "Another study."}
    [team, *_] = ledger.get("/v1/budgets").json()["items"]
    _answered(201, ledger.post(f"/v1/accounts/{team['id']}/limit", raised, If_Match="*"))
    silent = _employed(ledger, "mimic/icu-team", "silent")
    silent.reserved((LOUD, 4))
    _answered(200, silent.steps())
    _answered(200, silent.act("abort"))  # what is left of the plan is forfeited
    _answered(200, _employed(ledger, "mimic", "direct").steps())
    outside = {"name": "gpt2", "sha256": "5a" * 32}
    tuned = {"name": "tuned", "budget": "mimic/icu-team", "starts_from": [{"run": silent.run}, outside]}
    _answered(201, ledger.post("/v1/runs", tuned))
    trainer.reserved((LOUD, 5), (QUIET, 7), attempt=2, key="reserved")
    _answered(200, trainer.steps("planned", attempt=2))
    about = {"display_name": "ICU", "description": "For beds.", "owner": "icu", "links": [LINK], "labels": {"a": "b"}}
    for patch in (about, {"labels": {"a": "c", "team": "icu"}}):
        _answered(200, ledger.patch(f"/v1/budgets/{team['id']}", patch))
    _answered(200, ledger.post(f"/v1/accounts/{silent.run}/archive", None))
    record_usage_snapshots(ledger.database, datetime.now(UTC))
    ledger.cookie("viewer")
    create_sign_in_link(ledger.database, "hospital", ledger.database.clock.now())
    signer: Any = signer_of(str(signing_key()[0]))
    assert sign_due(ledger.database, signer, 3600, datetime.now(UTC)) > 0
    _answered(201, ledger.post("/v1/verifications", None, "auditor"))
    return trainer


def _answered(status: int, reply: httpx2.Response) -> None:
    assert reply.status_code == status, reply.text


def _employed(ledger: Ledger, budget: str, name: str) -> Trainer:
    return Trainer(ledger, ledger.run(budget, name=name, event=LOUD))
