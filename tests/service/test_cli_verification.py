"""`epsilon-ledger verify` and `epsilon-ledger export`."""

import json

import pytest
from sqlalchemy import update

from app.commands import verification
from app.persistence.database import ALL_TENANTS
from app.persistence.tables import runs
from tests.conftest import Ledger
from tests.persistence.dump import changed, dump
from tests.service.cli_runner import Run, commands
from tests.service.quarantine_lifts import lift
from tests.service.tampering import MODEL, TEAM, account, shift_curve, tampering


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str) -> Run:
    return commands(monkeypatch, capsys, database_url)


@pytest.fixture
def spent(ledger: Ledger) -> Ledger:
    """A ledger with three steps."""
    ledger.population()
    ledger.budget()
    ledger.post(f"/v1/runs/{ledger.run()}/steps", {"count": 3})
    return ledger


def test_verify_exits_0_for_a_sound_ledger_and_counts_what_it_checked(run: Run, spent: Ledger) -> None:
    before = dump(spent.database)
    said = run("verify", "--json")
    facts = json.loads(said.out)
    assert (said.status, facts.pop("discrepancies"), facts.pop("unproven"), facts.pop("sound")) == (0, [], [], True)
    assert facts.pop("quarantined") == {}
    assert facts == {
        "accounts": 3,
        "runs": 1,
        "decisions": 1,
        "reservations": 0,
        "charges": 1,
        "steps": 3,
        "audit_events": 19,
    }
    answer = run("verify")
    assert (answer.status, answer.err) == (0, "")
    for number in facts.values():
        assert str(number) in answer.out
    assert dump(spent.database) == before


def test_verify_exits_1_and_names_discrepancies(run: Run, spent: Ledger) -> None:
    with spent.database.write(ALL_TENANTS) as tx:
        tx.execute(update(runs).values(next_step=2))
        model = account(tx, MODEL).id
    said = run("verify", "--json")
    facts = json.loads(said.out)
    assert (said.status, facts["sound"], facts["unproven"]) == (1, False, [model])
    assert MODEL in facts["discrepancies"][0]
    answer = run("verify")
    assert answer.status == 1
    assert facts["discrepancies"][0] in answer.out
    assert "Writes to 1 accounts are stopped." in answer.out
    assert "Traceback" not in answer.err
    assert spent.get("/healthz").status_code == 200


def test_verify_stops_writes_unless_it_only_reads(run: Run, spent: Ledger) -> None:
    with tampering(spent.database) as tx:
        shift_curve(tx, TEAM, 1)
    before = dump(spent.database)
    said = run("verify", "--read-only")
    assert said.status == 1
    assert "stopped" not in said.out
    assert dump(spent.database) == before
    assert run("verify").status == 1
    assert changed(before, dump(spent.database)) == {"accounts", "audit_entries"}


def test_verify_shows_how_a_quarantine_is_lifted_and_does_not_lift_it(run: Run, spent: Ledger) -> None:
    with tampering(spent.database) as tx:
        shift_curve(tx, TEAM, 1)
    stopping = json.loads(run("verify", "--json").out)
    assert stopping["quarantined"] == {stopping["unproven"][0]: stopping["discrepancies"][0]}
    assert "quarantine lift" not in run("verify").out
    with tampering(spent.database) as tx:
        shift_curve(tx, TEAM, -1)
        team = account(tx, TEAM)
    command = f"epsilon-ledger quarantine lift {team.id} --org {team.organisation_id} --reason"
    for look in (("verify",), ("verify", "--read-only")):
        before = dump(spent.database)
        answer = run(*look)
        assert (answer.status, answer.err) == (0, "")
        assert "Writes to 1 accounts are stopped." in answer.out
        assert "until two persons lift its quarantine" in answer.out
        assert command in answer.out
        assert dump(spent.database) == before
    assert _quarantine(spent) is not None
    with pytest.MonkeyPatch.context() as bounded:
        bounded.setattr(verification, "MAX_LIFT_COMMANDS", 0)
        assert "and 1 more" in run("verify").out
    facts = json.loads(run("verify", "--json").out)
    assert (facts["sound"], facts["unproven"], list(facts["quarantined"])) == (True, [], [team.id])
    lift(spent, TEAM)
    assert _quarantine(spent) is None
    answer = run("verify")
    assert (answer.status, "stopped" in answer.out) == (0, False)


def _quarantine(ledger: Ledger) -> str | None:
    with ledger.database.read(ALL_TENANTS) as tx:
        found: str | None = account(tx, TEAM).quarantine_reason
    return found


def test_export_prints_lines_of_json(run: Run, spent: Ledger) -> None:
    with spent.database.read(ALL_TENANTS) as tx:
        model = account(tx, MODEL).id
    for scope in (("--population", "mimic"), ("--run", model), ("--population", "mimic", "--org", "hospital")):
        said = run("export", *scope)
        lines = [json.loads(line) for line in said.out.splitlines()]
        assert (said.status, said.err, lines[0]["type"], lines[-1]) == (
            0,
            "",
            "header",
            {"type": "end", "lines": len(lines)},
        )
        assert [line["entry"]["step_count"] for line in lines if line["type"] == "decision"] == [3]


@pytest.mark.parametrize(
    "scope", [(), ("--run", "x", "--population", "y"), ("--run", "x"), ("--population", "mimic", "--org", "nobody")]
)
def test_export_of_an_unknown_scope_is_one_sentence(run: Run, spent: Ledger, scope: tuple[str, ...]) -> None:
    said = run("export", *scope)
    assert (said.status, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert spent.get("/healthz").status_code == 200
