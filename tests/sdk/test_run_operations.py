"""Methods of runs call the operations that docs/reference/client.md lists, and signatures verify."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from epsilon_ledger import Checkpoint, InvalidSignatureError, LedgerClient, Limit, SigningKey
from tests.forged_documents import forged_documents
from tests.sdk.fake_ledger import open_budget
from tests.sdk.simulation import BUDGET, HOUR, LOUD, Simulation
from tests.sdk.test_operations import operation_of, table
from tests.sdk.test_reservation_waits import Waits, plan

ELSEWHERE = {"Run.track", "Run.resolve_in_doubt", "Run.charge_training", "Run.charge_epoch", "Run.track_epoch"}
"""Methods that call their operations in other tests."""


def test_methods_of_runs_call_their_operations(simulation: Simulation) -> None:
    waits = Waits(ledger=simulation.ledger, clock=simulation.clock)
    client = waits.waiter()

    def called(act: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it answers
        waits.requests.clear()
        answer = act()
        # Without those of the run that gives its reservation back meanwhile.
        asked = [request for request in waits.requests if waits.holder.id not in request.url.path]
        seen.append({operation_of(request) for request in asked})
        return answer

    seen: list[set[str]] = []
    run = called(lambda: client.create_run("first", budget=BUDGET, event=LOUD))
    acts: dict[str, Callable[[], Any]] = {
        "Run.preview": lambda: run.preview(2),
        "Run.authorize": lambda: run.authorize(2),
        "Run.report": run.report,
        "Run.pause": run.pause,
        "Run.resume": run.resume,
        "Run.reserve": lambda: run.reserve(plan(1)),
        "Run.renew": run.renew,
        "Run.commit": lambda: run.commit(1),
        "Run.void": lambda: (run.reserve(plan(1)), run.void()),
        "Run.request_limit": lambda: run.request_limit("All epochs.", Limit(1.5, 1e-5), account=BUDGET),
        "Run.refresh": run.refresh,
        "get_run": lambda: client.get_run(run.id),
        "get_run by path": lambda: client.get_run(f"{BUDGET}/first"),
        "resume_run": lambda: client.resume_run(run.state_dict()),
        "resume_run by path": lambda: client.resume_run(f"{BUDGET}/first").complete(),
    }
    for act in acts.values():
        called(act)
    waits.acts = {2: waits.give_back}
    second = called(lambda: client.create_run("second", budget=BUDGET, event=LOUD, reserve=plan(20), wait=HOUR))
    called(second.wait_for_reservation)
    called(lambda: second.complete(0))
    called(client.create_run("third", budget=BUDGET).abort)
    names = ["create_run", *acts, "create_run", "Run.wait_for_reservation", "Run.complete", "Run.abort"]
    documented = table()
    for name, operations in zip(names, seen, strict=True):
        extra = {"Run.void": {"createReservation"}, "resume_run by path": {"completeRun"}}.get(name, set())
        # Besides those of the table, a path or a run's state may be looked up.
        assert operations - extra - {"listBudgets", "listRuns", "getRun"} <= documented[name.partition(" ")[0]], name
    assert {name for name in documented if "." in name} - ELSEWHERE <= set(names)
    found = {name.partition(" ")[0]: operations for name, operations in zip(names, seen, strict=True)}
    assert found["create_run"] == documented["create_run"]


def test_statements_and_checkpoints_are_verified_with_key_that_signed_them(admin: LedgerClient) -> None:
    name = open_budget(admin, 1.0).partition("/")[0]
    key = admin.get_signing_key()
    for document in (admin.get_population_statement(name), admin.create_checkpoint()):
        assert document.signature.key_id == key.key_id
        text = json.dumps(asdict(document))
        signed = type(document).from_json(text).verify(key.public_key)
        assert signed == document.verify(key.public_key)
        payload: Any = document.payload
        assert signed.startswith(
            f"Signed by the key {key.key_id}: {payload['type']} of {payload['organisation']} about "
        )
        if "loss" in payload:
            loss = payload["loss"]
            assert f"'{name}', " in signed
            assert f", epsilon {loss['epsilon']} of {loss['limit']['epsilon']} at delta " in signed
        assert [forgery for forgery, sent in forged_documents(json.loads(text)).items() if _sound(sent, key)] == []
        forged = type(document)({**document.payload, "type": "other"}, document.signature)
        with pytest.raises(InvalidSignatureError, match=key.key_id):
            forged.verify(key.public_key)


def _sound(text: str, key: SigningKey) -> bool:
    try:
        return bool(Checkpoint.from_json(text).verify(key.public_key))
    except (InvalidSignatureError, ValueError):
        return False
