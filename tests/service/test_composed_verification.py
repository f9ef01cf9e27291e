"""Verification of disjoint parts and of runs that charge several budgets: what was changed is found, and stops them."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, update

from app.persistence.tables import account_ancestors, accounts, partition_attestations, run_budgets
from app.service.audit.export import export
from app.service.auth.authentication import CLI_ACTOR
from app.service.verification import verify
from app.service.verification.requests import apply_quarantines
from tests.conftest import Ledger
from tests.service.quarantine_lifts import lift
from tests.service.tampering import set_account, set_balance, tampering

SCRIPT = Path(__file__).parents[2] / "examples/verify_export.py"
LOUD = {"type": "gaussian", "noise_multiplier": 60.0}
LIMIT = {"epsilon": 1.0, "delta": 1e-5}


@pytest.fixture
def composed(ledger: Ledger) -> Ledger:
    """Two sites of a group, the second with more spent, by a run that charges a clinic as well; and a plan."""
    ledger.population("group", limit=LIMIT, composition="parallel", attestation="by site")
    ledger.population("clinic", limit=LIMIT)
    for name, parent in (("north", "group"), ("south", "group"), ("team", "clinic")):
        ledger.budget(name, parent, limit=LIMIT)
    north = ledger.run("group/north", name="alone", event=LOUD)
    body = {"name": "both", "budgets": ["group/south", "clinic/team"], "event": LOUD}
    both = ledger.post("/v1/runs", body).json()["id"]
    for run, count in ((north, 20), (both, 50)):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": count}).status_code == 200
    held = ledger.post(f"/v1/runs/{north}/reservations", {"plan": [{"event": LOUD, "count": 40}]})
    assert held.status_code == 201
    return ledger


def _forget_second(tx: Connection) -> None:
    tx.execute(delete(run_budgets).where(run_budgets.c.position == 1))


def _forget_above_second(tx: Connection) -> None:
    clinic = tx.execute(accounts.select().where(accounts.c.path == "clinic")).one().id
    model = tx.execute(accounts.select().where(accounts.c.path == "group/south/both")).one().id
    tx.execute(
        delete(account_ancestors).where(
            account_ancestors.c.account_id == model, account_ancestors.c.ancestor_id == clinic
        )
    )


TAMPERINGS: dict[str, tuple[Callable[[Connection], object], str]] = {
    "parts that are added up": (lambda tx: set_account(tx, "group", max_partitions_per_unit=None), "group ("),
    "more parts that count": (lambda tx: set_account(tx, "group", max_partitions_per_unit=2), "group ("),
    "a sum made parallel": (lambda tx: set_account(tx, "clinic", max_partitions_per_unit=1), "clinic ("),
    "an attestation forgotten": (lambda tx: tx.execute(delete(partition_attestations)), "no attestation says"),
    "a second budget forgotten": (_forget_second, "group/south/both"),
    "an ancestor of it left out": (_forget_above_second, "group/south/both"),
    "a first budget that is another": (
        lambda tx: tx.execute(update(run_budgets).values(position=9 - run_budgets.c.position)),
        "the first budget that it charges",
    ),
    "nothing spent by the whole": (lambda tx: set_balance(tx, "group", spent_curve=b"", held_curve=b""), "group ("),
    "nothing held by the whole": (lambda tx: set_balance(tx, "group", held_curve=b""), "group ("),
    "nothing spent by a part": (lambda tx: set_balance(tx, "group/south", spent_curve=b""), "group/south ("),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_was_tampered_with_is_named(composed: Ledger, what: str) -> None:
    assert verify(composed.database).problems == ()
    tamper, named = TAMPERINGS[what]
    if what == "nothing spent by a part":  # written as what was charged since, it would read as before
        set_since = {"uncompacted_charges": "{}"}
        with tampering(composed.database) as tx:
            set_account(tx, "group/south", **set_since)
    with tampering(composed.database) as tx:
        tamper(tx)
    problems = verify(composed.database).problems
    assert any(named in problem for problem in problems), problems


def test_a_part_that_is_not_proven_stops_the_others(composed: Ledger) -> None:
    """What the whole has lost depends on it; it goes on when the row is restored."""
    [run] = [each["id"] for each in composed.get("/v1/runs").json()["items"] if each["path"] == "group/south/both"]
    with tampering(composed.database) as tx:
        set_balance(tx, "group/north", spent_delta=1)
    apply_quarantines(composed.database, verify(composed.database), CLI_ACTOR, datetime.now(UTC))
    stopped = composed.post(f"/v1/runs/{run}/steps", {"count": 1})
    assert (stopped.status_code, stopped.json()["code"]) == (409, "account_quarantined")
    assert "group/north" in stopped.json()["detail"]
    with tampering(composed.database) as tx:
        set_balance(tx, "group/north", spent_delta=0)
    lift(composed, "group/north")
    assert composed.post(f"/v1/runs/{run}/steps", {"count": 1}).json()["decision"] == "admitted"


def _script(lines: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "-"],
        input="\n".join(lines),
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )


def _exported(ledger: Ledger, population: str) -> list[str]:
    return list(export(ledger.database, datetime.now(UTC), population=population))


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("group", {"composition": "sequential"}),
        ("group", {"max_partitions_per_unit": 2}),
        ("group/north", {"composition": "parallel", "max_partitions_per_unit": 1}),
        ("group/south/both", {"parents": []}),
    ],
)
def test_the_script_finds_a_tree_that_was_changed(composed: Ledger, path: str, changes: dict[str, object]) -> None:
    lines = _exported(composed, "group")
    assert _script(lines).returncode == 0
    place, answer = next(
        (place, json.loads(line)) for place, line in enumerate(lines) if json.loads(line).get("path") == path
    )
    lines[place] = json.dumps(answer | changes)
    done = _script(lines)
    assert (done.returncode, "NOT SOUND" in done.stdout) == (1, True), done.stdout + done.stderr


def test_an_export_has_the_accounts_of_other_populations_for_their_limits(composed: Ledger) -> None:
    answer = [json.loads(line) for line in _exported(composed, "clinic")]
    found = {line["path"]: line["complete"] for line in answer if line["type"] == "account"}
    assert found == {
        "clinic": True,
        "clinic/team": True,
        "group/south/both": True,
        "group": False,
        "group/south": False,
    }
    assert _script(_exported(composed, "clinic")).returncode == 0
    model = next(line for line in answer if line.get("path") == "group/south/both")
    budgets = {line["path"]: line["id"] for line in answer if line["type"] == "account"}
    assert model["parents"] == [budgets["group/south"], budgets["clinic/team"]]
