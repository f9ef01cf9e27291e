"""Lineage: what a run starts from is declared once, recorded, and verified."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, update

from app.persistence.tables import run_origins, runs
from app.service.verification.verify import verify
from tests.api.conftest import SeededLedger
from tests.api.trainer import audited, is_refused, issue
from tests.service.tampering import tampering

GPT2 = {"name": "gpt2", "sha256": "5a" * 32}


def _register(seeded: SeededLedger, role: str = "trainer", **terms: object) -> Any:  # noqa: ANN401 - a response
    body = {"name": "tuned", "budget": "mimic/icu-team"} | terms
    return seeded.ledger.post("/v1/runs", body, role)


def test_origins_are_resolved_recorded_and_shown(seeded: SeededLedger) -> None:
    made = _register(seeded, starts_from=[{"run": "mimic/icu-team/model"}, GPT2 | {"sha256": "5A" * 32}])
    run, expected = made.json(), [{"run": seeded.run}, GPT2]
    assert (made.status_code, run["starts_from"]) == (201, expected)
    assert seeded.ledger.get(f"/v1/runs/{run['id']}").json() == run
    [event] = audited(seeded.ledger, f"action=run.created&subject={run['id']}")
    assert event["after"]["starts_from"] == expected
    header, *rows = seeded.ledger.get("/v1/runs.csv?sort=created_at").text.splitlines()
    assert "starts_from" in header.split(",")
    assert any(GPT2["sha256"] in row and seeded.run in row for row in rows)
    assert seeded.sound()


@pytest.mark.parametrize(("declared", "stored"), [([], []), (None, None)])
def test_nothing_and_not_declared_differ(seeded: SeededLedger, declared: object, stored: object) -> None:
    run = _register(seeded, starts_from=declared).json()
    assert run["starts_from"] == stored
    [event] = audited(seeded.ledger, f"action=run.created&subject={run['id']}")
    assert event["after"]["starts_from"] == stored
    assert seeded.sound()


WRONG: dict[str, tuple[object, str]] = {
    "unknown run": ([{"run": "run_19aa5b3c4d7b0c1"}], "run_19aa5b3c4d7b0c1"),
    "unknown path": ([{"run": "mimic/icu-team/nothing"}], "mimic/icu-team/nothing"),
    "a budget": ([{"run": "mimic/icu-team"}], "mimic/icu-team"),
}
MALFORMED: dict[str, object] = {
    "neither": [{}],
    "both": [{"run": "mimic/icu-team/model"} | GPT2],
    "no digest": [{"name": "gpt2"}],
    "no name": [{"sha256": GPT2["sha256"]}],
    "half a digest": [GPT2 | {"sha256": "5a" * 16}],
    "no words": [GPT2 | {"name": "\x00"}],
    "too many": [{"name": "m", "sha256": f"{number:064x}"} for number in range(17)],
    "no list": {"run": "mimic/icu-team/model"},
}


def test_wrong_origins_are_refused_and_nothing_is_stored(seeded: SeededLedger) -> None:
    before = seeded.rows()
    for origins, named in WRONG.values():
        assert named in is_refused(_register(seeded, starts_from=origins), 404, "not_found")["detail"]
    for origins in MALFORMED.values():
        is_refused(_register(seeded, starts_from=origins), 422, "invalid_request")
    for twice in ([{"run": seeded.run}, {"run": "mimic/icu-team/model"}], [GPT2, GPT2 | {"name": "another"}]):
        assert "twice" in is_refused(_register(seeded, starts_from=twice), 422, "invalid_request")["detail"]
    assert seeded.rows() == before


def test_path_of_several_runs_needs_an_id(seeded: SeededLedger) -> None:
    second = seeded.ledger.run()
    refused = is_refused(_register(seeded, starts_from=[{"run": "mimic/icu-team/model"}]), 422, "invalid_request")
    assert all(each in refused["detail"] for each in (seeded.run, second))
    assert _register(seeded, starts_from=[{"run": second}]).status_code == 201


def test_run_out_of_scope_is_as_unknown(seeded: SeededLedger) -> None:
    seeded.ledger.budget("other")
    issue(seeded.ledger, "bound", "trainer", "mimic/other")
    for named in (seeded.run, "mimic/icu-team/model"):
        refused = _register(seeded, "bound", budget="mimic/other", starts_from=[{"run": named}])
        assert named in is_refused(refused, 404, "not_found")["detail"]


def test_key_for_one_run_may_name_others_of_its_scope(seeded: SeededLedger) -> None:
    ends = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
    terms = {"role": "trainer", "scope": "mimic/icu-team", "expires_at": ends, "single_use": True}
    key = seeded.ledger.post("/v1/api-keys", terms).raise_for_status()
    seeded.ledger.keys["hospital", "job"] = key.json()["key"]
    assert _register(seeded, "job", starts_from=[{"run": seeded.run}]).status_code == 201


def test_policy_requires_the_declaration(seeded: SeededLedger) -> None:
    seeded.ledger.set_policy({"require_starts_from": True}, seeded.budget).raise_for_status()
    refused = is_refused(_register(seeded), 403, "policy_violation")
    assert (refused["rule"], refused["policy"]) == ("require_starts_from", "mimic/icu-team")
    assert "Send `starts_from`: the runs and the outside models" in refused["detail"]
    assert _register(seeded, starts_from=[]).status_code == 201
    sweep = {
        **{"name": "sweep-2", "budget": "mimic/icu-team", "charging_mode": "repeat_and_select"},
        "trials": {"events": [{"event": {"type": "gaussian", "noise_multiplier": 90.0}, "count": 1}], "mean": 2.0},
    }
    is_refused(seeded.ledger.post("/v1/experiments", sweep, "trainer"), 403, "policy_violation")
    made = seeded.ledger.post("/v1/experiments", sweep | {"starts_from": [GPT2]}, "trainer").raise_for_status()
    assert seeded.ledger.get(f"/v1/runs/{made.json()['run']}").json()["starts_from"] == [GPT2]


def test_verification_finds_another_lineage(seeded: SeededLedger) -> None:
    run = _register(seeded, starts_from=[{"run": seeded.run}]).json()["id"]
    assert seeded.sound()
    with tampering(seeded.ledger.database) as tx:
        tx.execute(delete(run_origins))
    assert any("not those that it declared" in each for each in verify(seeded.ledger.database).problems)
    with tampering(seeded.ledger.database) as tx:
        tx.execute(update(runs).where(runs.c.account_id == run).values(starts_from=()))
    assert any("starts_from" in each for each in verify(seeded.ledger.database).problems)
