"""Exports: a stand-alone script finds a sound ledger sound, and names the first bad row of any other."""

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.persistence.database import Database
from app.service.audit.export import export
from app.service.maintenance import expire_reservations
from app.service.verification import verify
from tests.api.trainer import QUIET, Trainer
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.service.export_script import SCRIPT, Line, exported, run_script, verified
from tests.service.prepared_ledgers import ATTESTED, NOISE, STEP, copied, plan_accounts
from tests.service.tampering import TEAM, set_account, tampering

Change = Callable[[list[Line]], object]


def end_plans(ledger: Ledger) -> None:
    """Two runs with steps and refusals; the first has a committed, a forfeited and an active plan, half used."""
    ledger.population()
    ledger.budget()
    trainer = Trainer(ledger, ledger.run())
    for body in ({"count": 4}, {"event": NOISE, "count": 10**6}, {"event": NOISE, "count": 2}):
        trainer.steps(**body)
    committed = trainer.reserved((NOISE, 3))
    assert trainer.steps(event=NOISE).status_code == 200
    assert trainer.end(committed, "commit", 2).status_code == 200
    trainer.reserved((NOISE, 3))
    assert trainer.steps(event=NOISE).status_code == 200
    assert expire_reservations(ledger.database, datetime.now(UTC) + timedelta(days=9)) == 1
    trainer.reserved((NOISE, 4), (QUIET, 1))
    assert trainer.steps(event=NOISE, count=2).status_code == 200
    ledger.post(f"/v1/runs/{ledger.run(name='other', event=NOISE)}/steps", {})


FURNISHED = {"ended": end_plans, "planned": plan_accounts}


@pytest.fixture
def ended(ledger: Ledger) -> Ledger:
    """As furnished."""
    return ledger


@pytest.fixture
def planned(ledger: Ledger) -> Ledger:
    """As furnished."""
    return ledger


def test_sound_population_is_found_sound_and_its_heads_are_printed(ended: Ledger, tmp_path: Path) -> None:
    before = dump(ended.database)
    lines = exported(ended.database, population="mimic")
    assert dump(ended.database) == before
    assert lines[0]["scope"] == "population"
    assert [line["type"] for line in exported(ended.database, population=lines[0]["id"])] == [
        line["type"] for line in lines
    ]
    said = verified(lines, tmp_path)
    assert (said.status, said.err) == (0, "")
    assert "4 balances recomputed" in said.out
    heads = {line["id"]: line["chain_head"] for line in lines if line["type"] == "run"}
    assert len(heads) == 2
    assert all(run in said.out and head in said.out for run, head in heads.items())


def test_sound_run_is_found_sound_by_itself(ended: Ledger, tmp_path: Path) -> None:
    for run in (line["id"] for line in exported(ended.database, population="mimic") if line["type"] == "run"):
        lines = exported(ended.database, run=run)
        assert {line["entry"]["run_id"] for line in lines if line["type"] == "decision"} == {run}
        assert [line["complete"] for line in lines if line["type"] == "account"] == [False, False, True]
        said = verified(lines, tmp_path)
        assert (said.status, said.err) == (0, "")
        assert "1 balances recomputed" in said.out


def test_head_that_was_seen_is_found_and_another_is_not(ended: Ledger, tmp_path: Path) -> None:
    lines = exported(ended.database, population="mimic")
    line = next(line for line in lines if line["type"] == "decision")
    found = verified(lines, tmp_path, "--seen", line["hash"].upper())
    assert found.status == 0
    assert f"seen: decision {line['entry']['position']} of {line['entry']['run_id']}\n" in found.out
    said = verified(lines, tmp_path, "--seen", line["hash"], "--seen", "0" * 64)
    assert said.status == 1
    assert f"hash {'0' * 64} is in no chain" in said.out


@pytest.mark.parametrize("short", ["0123abcd", "", "x" * 64, "0" * 65])
def test_shortened_hash_is_a_mistake_and_no_alarm(tmp_path: Path, short: str) -> None:
    said = verified([], tmp_path, f"--seen={short}")
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert "64 hexadecimal digits" in said.err


def test_script_needs_only_the_standard_library_and_reads_a_pipe(ended: Ledger) -> None:
    text = "".join(f"{line}\n" for line in export(ended.database, datetime.now(UTC), population="mimic"))
    command = [sys.executable, "-I", "-S", str(SCRIPT), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 balances recomputed" in done.stdout


def of_kind(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["type"] == kind]


def change(kind: str, index: int, part: str | None = None, **values: object) -> Change:
    """Change a line of a kind, or the object that is a part of it."""
    return lambda lines: (of_kind(lines, kind)[index] if part is None else of_kind(lines, kind)[index][part]).update(
        values
    )


def shift(kind: str, index: int, name: str) -> Change:
    def apply(lines: list[Line]) -> None:
        line = of_kind(lines, kind)[index]
        data = bytearray(base64.b64decode(line[name]))
        data[24] = (data[24] + 1) % 256
        line[name] = base64.b64encode(data).decode()

    return apply


def drop(kind: str, index: int, last: int | None = None) -> Change:
    """Remove a line, or those up to the last but so many, and count the others."""

    def apply(lines: list[Line]) -> None:
        found = of_kind(lines, kind)
        for line in [found[index]] if last is None else found[index:]:
            lines.remove(line)
            lines[-1]["lines"] -= 1

    return apply


def unlimit(lines: list[Line]) -> None:
    for line in of_kind(lines, "account"):
        line["limits"] = [None]


def use_more_of_a_plan(lines: list[Line]) -> None:
    of_kind(lines, "reservation")[-1]["items"][0]["used"] = 3


def plan_longer(lines: list[Line]) -> None:
    of_kind(lines, "reservation")[-1]["items"][0]["count"] = 5


def free_step(lines: list[Line]) -> None:
    next(line for line in of_kind(lines, "plan_cost") if line["used"] == [0, 0, 1])["used"] = [0, 0, 0]


def limits(epsilon: float, delta: float = 1e-5) -> list[dict[str, float]]:
    return [{"epsilon": epsilon, "delta": delta}]


ANOTHER_DECISION = "decision 2: it is not the one that was made"
CHANGES: dict[str, tuple[Change, str]] = {
    "a charge's count": (change("decision", 2, "entry", items=[["0" * 64, 1]]), ANOTHER_DECISION),
    "an epsilon": (change("decision", 0, "entry", epsilon=0.0), "decision 0: it is not the one that was made"),
    "a refusal": (change("decision", 1, "entry", refusal_details="{}"), "decision 1: it is not the one"),
    "a hash": (change("decision", 2, hash="0" * 64), ANOTHER_DECISION),
    "a decision left out": (drop("decision", 1), "decision 1 is missing"),
    "the last decision left out": (drop("decision", -1), "decision 0: it is missing"),
    "a forged head": (change("run", 0, chain_head="0" * 64), "it is missing, or the head of the chain is another"),
    "a next step": (change("run", 0, next_step=3), "its steps end at"),
    "a run's spent curve": (shift("account", 2, "spent"), "its spent curve is not the sum"),
    "a budget's spent curve": (shift("account", 1, "spent"), "account mimic/icu-team ("),
    "a population's delta": (change("account", 0, spent_delta=1), "account mimic ("),
    "a budget's held curve": (shift("account", 1, "held"), "its held curve is not the sum"),
    "a budget's epsilon": (
        change("account", 1, limits=limits(2.0)),
        "its limit was never epsilon 1.0 at delta 1e-05, which decision 0 of run ",
    ),
    "a budget's delta": (change("account", 1, limits=limits(1.0, 0.1)), "account mimic/icu-team ("),
    "a run's limit that it had not": (change("account", 2, limits=limits(9.0)), "its limit was never"),
    "every limit taken away": (unlimit, "account mimic ("),
    "a price": (shift("price", 0, "curve"), "is not"),
    "a price left out": (drop("price", 0), "has no price"),
    "a price's delta": (change("price", 0, delta=7), "is not"),
    "an event's description": (change("event", 0, canonical="{}"), "its description has another fingerprint"),
    "a reserved curve": (shift("reservation", 0, "reserved"), "its curve is not that of its plan"),
    "a plan's use": (use_more_of_a_plan, "what it says to be used is not what was charged"),
    "a plan's length": (plan_longer, "its curve is not that of its plan"),
    "a forfeit taken back": (
        change("reservation", 1, status="committed", steps_executed=1),
        "what is left of it is not what was forfeited",
    ),
    "an attestation": (change("reservation", 0, steps_executed=3), "what was executed is not what was charged"),
    "a reservation's end": (change("reservation", 2, status="committed", steps_executed=2), "curve is not the sum"),
    "an audit event left out": (drop("audit_event", 3), "audit event 3 is missing"),
    "an audit event's reason": (
        change("audit_event", 2, "entry", reason="x"),
        "audit event 2 is missing, or is not the one that was recorded",
    ),
    "every audit event left out but the first": (
        drop("audit_event", 1, last=0),
        "its limits are not those that the organisation's audit events",
    ),
    "the end left out": (lambda lines: lines.remove(lines[-1]), "before its end"),
    "lines left out": (lambda lines: lines.remove(lines[1]), " lines; "),
    "another format": (change("header", 0, format=2), "this script reads format 1"),
    "another organisation": (change("header", 0, organisation="org_x"), "audit event 0 is missing, or is not the one"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changed_line_is_named(ended: Ledger, tmp_path: Path, what: str) -> None:
    apply, named = CHANGES[what]
    lines = exported(ended.database, population="mimic")
    apply(lines)
    said = verified(lines, tmp_path)
    assert (said.status, said.err) == (1, "")
    assert said.out.startswith("NOT SOUND: ")
    assert named in said.out


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A copy of the prepared ledger that the test's parameter `name` names."""
    with copied(request.node.callspec.params["name"], tmp_path) as opened:
        yield opened


def of_account(path: str, **values: object) -> Change:
    return lambda lines: next(line for line in lines if line.get("path") == path).update(values)


@pytest.mark.parametrize(
    ("name", "population", "apply"),
    [
        ("composed", "group", of_account("group", composition="sequential")),
        ("composed", "group", of_account("group", max_partitions_per_unit=2)),
        ("composed", "group", of_account("group/north", composition="parallel", max_partitions_per_unit=1)),
        ("composed", "group", of_account("group/south/both", parents=[])),
        ("planned", "mimic", free_step),
        ("refused", "mimic", of_account("mimic", limits=limits(5.0))),
    ],
)
def test_changed_tree_plan_or_limit_is_found(
    database: Database, tmp_path: Path, name: str, population: str, apply: Change
) -> None:
    lines = exported(database, population=population)
    assert verified(lines, tmp_path).status == 0, name
    apply(lines)
    said = verified(lines, tmp_path)
    assert (said.status, said.out[:9]) == (1, "NOT SOUND"), said


@pytest.mark.parametrize("name", ["composed"])
def test_export_has_the_accounts_of_other_populations_for_their_limits(
    database: Database, tmp_path: Path, name: str
) -> None:
    lines = exported(database, population="clinic")
    assert verified(lines, tmp_path).status == 0, name
    found = {line["path"]: line["complete"] for line in of_kind(lines, "account")}
    whole, part = ("clinic", "clinic/team", "group/south/both"), ("group", "group/south")
    assert found == dict.fromkeys(whole, True) | dict.fromkeys(part, False)
    budgets = {line["path"]: line["id"] for line in of_kind(lines, "account")}
    model = next(line for line in lines if line.get("path") == "group/south/both")
    assert model["parents"] == [budgets["group/south"], budgets["clinic/team"]]


def test_of_partitions_the_largest_use_of_a_plan_counts(ledger: Ledger, tmp_path: Path) -> None:
    ledger.population(planned=[{"event": QUIET, "count": 20}, {"event": STEP}], **ATTESTED)
    for name, quiet, sampled in (("one", 3, 9), ("two", 8, 2), ("three", 1, 1)):
        ledger.budget(name, limit={"epsilon": 2.0, "delta": 1e-5})
        trainer = Trainer(ledger, ledger.run(f"mimic/{name}", name=name, event=STEP))
        assert trainer.steps(event=QUIET, count=quiet).status_code == 200
        assert trainer.steps(count=sampled).status_code == 200
        if name == "two":
            trainer.reserved((STEP, 4))
            assert trainer.steps(count=3).status_code == 200
    assert verify(ledger.database).problems == ()
    lines = exported(ledger.database, population="mimic")
    assert verified(lines, tmp_path).out.startswith("Sound: ")
    population = next(line for line in of_kind(lines, "account") if line["kind"] == "population")
    spent, held = population["plan_usage"][population["id"]]
    gaussian = {line["used"][1] for line in of_kind(lines, "plan_cost")} - {0}
    assert spent == [0, 8 * max(gaussian), 9]  # hospital two has used most of the one, hospital one of the other
    assert [one + other for one, other in zip(spent, held, strict=True)] == [0, 8 * max(gaussian), 9]


def test_plan_that_was_ended_is_proven_too(planned: Ledger, tmp_path: Path) -> None:
    ledger = planned
    other = {"type": "laplace", "noise_multiplier": 400.0}
    trainer = Trainer(ledger, ledger.run(name="other", event=other))
    assert {each["account_path"] for each in trainer.steps().json()["ended_plans"]} == {"mimic", TEAM}
    fresh: dict[str, Any] = ledger.budget("fresh", planned=[{"event": STEP}])
    assert Trainer(ledger, ledger.run("mimic/fresh", event=other)).steps().status_code == 200
    assert ledger.get(f"/v1/budgets/{fresh['id']}").json()["plan"] is None
    assert verify(ledger.database).problems == ()
    assert verified(exported(ledger.database, population="mimic"), tmp_path).out.startswith("Sound: ")


def test_file_that_is_no_export_is_one_sentence(tmp_path: Path) -> None:
    for lines in ([{"type": "header"}], [{"a": 1}], [{"type": "poem"}]):
        assert verified(lines, tmp_path).status in {1, 2}
    missing = run_script(str(tmp_path / "nothing"))
    assert (missing.status, missing.out) == (2, "")
    assert "cannot be read as an export" in missing.err


@pytest.mark.parametrize(
    ("scope", "error", "words"),
    [
        ({}, InvalidInputError, "either a run or a population"),
        ({"run": "run_x", "population": "mimic"}, InvalidInputError, "either a run or a population"),
        ({"run": "run_x"}, NotFoundError, "There is no run"),
        ({"run": "mimic"}, NotFoundError, "There is no run"),
        ({"population": "mimic/icu-team"}, NotFoundError, "There is no population"),
        ({"population": "x"}, NotFoundError, "There is no population"),
        ({"population": "x", "organisation": "nobody"}, NotFoundError, "no organisation 'nobody'"),
    ],
)
def test_export_is_of_one_thing_that_is_there(
    ended: Ledger, scope: dict[str, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        exported(ended.database, **scope)


def test_populations_of_one_name_are_told_apart_by_organisation(ended: Ledger, tmp_path: Path) -> None:
    body = {"name": "mimic", "privacy_unit": "patient", "neighboring_relation": "replace_one", "limit": limits(1.0)[0]}
    assert ended.http.post("/v1/populations", json=body, headers=ended.headers("admin", "clinic")).status_code == 201
    with pytest.raises(InvalidInputError, match="Several organisations have a population 'mimic'"):
        exported(ended.database, population="mimic")
    lines = exported(ended.database, population="mimic", organisation="clinic")
    assert {line["type"] for line in lines} == {"header", "account", "audit_event", "end"}
    assert verified(lines, tmp_path).status == 0


def test_unreadable_row_is_not_exported(ended: Ledger) -> None:
    with tampering(ended.database) as tx:
        set_account(tx, TEAM, filter_weights="x")
    with pytest.raises(LedgerUnavailableError, match=r"accounts.filter_weights .*mimic/icu-team.* cannot be read"):
        exported(ended.database, population="mimic")
