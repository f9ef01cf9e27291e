"""Exports: a stand-alone script finds a sound ledger sound, and names the first bad row of any other."""

import base64
import io
import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.persistence.database import Database
from app.service.audit.export import export
from app.service.maintenance import expire_reservations
from app.service.verification.verify import verify
from tests.api.trainer import QUIET, Trainer, hired
from tests.conftest import SAMPLED, Ledger
from tests.persistence.dump import dump
from tests.service.cli_runner import Said
from tests.service.prepared_ledgers import ATTESTED, NOISE, STEP, copied, plan_accounts
from tests.service.tampering import TEAM, set_account, tampering

SCRIPT = Path(__file__).parents[2] / "examples" / "verify_export.py"

Line = dict[str, Any]
Change = Callable[[list[Line]], object]


@cache
def _script() -> ModuleType:
    spec: Any = spec_from_file_location("verify_export", SCRIPT)
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def exported(database: Database, **scope: str) -> list[Line]:
    return [json.loads(line) for line in export(database, datetime.now(UTC), **scope)]


def verified(lines: Iterable[Line], folder: Path, *more: str) -> Said:
    """What the script says of an export."""
    file = folder / "export.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run_script(str(file), *more)


def run_script(*arguments: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", ["verify_export.py", *arguments]), redirect_stdout(out), redirect_stderr(err):
        status = _script().main()
    return Said(status, out.getvalue(), err.getvalue())


def end_plans(ledger: Ledger) -> None:
    """Two runs with steps and refusals; the first has a committed, a forfeited and an active plan, half used."""
    trainer = hired(ledger, event=SAMPLED)
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
    return ledger


@pytest.fixture
def planned(ledger: Ledger) -> Ledger:
    return ledger


def test_sound_population_and_run_are_found_sound_and_heads_are_printed(ended: Ledger, tmp_path: Path) -> None:
    before = dump(ended.database)
    lines = exported(ended.database, population="mimic")
    assert dump(ended.database) == before
    assert lines[0]["scope"] == "population"
    by_id = exported(ended.database, population=lines[0]["id"])
    assert [line["type"] for line in by_id] == [line["type"] for line in lines]
    decision = next(line for line in lines if line["type"] == "decision")
    said = verified(lines, tmp_path, "--seen", decision["hash"].upper())
    assert (said.status, said.err) == (0, "")
    assert "4 balances recomputed" in said.out
    assert f"seen: decision {decision['entry']['position']} of {decision['entry']['run_id']}\n" in said.out
    heads = {line["id"]: line["chain_head"] for line in lines if line["type"] == "run"}
    assert len(heads) == 2
    assert all(run in said.out and head in said.out for run, head in heads.items())
    said = verified(lines, tmp_path, "--seen", "0" * 64)
    assert (said.status, f"hash {'0' * 64} is in no chain" in said.out) == (1, True)
    for run in heads:
        lines = exported(ended.database, run=run)
        assert {line["entry"]["run_id"] for line in lines if line["type"] == "decision"} == {run}
        assert [line["complete"] for line in lines if line["type"] == "account"] == [False, False, True]
        said = verified(lines, tmp_path)
        assert (said.status, said.err, "1 balances recomputed" in said.out) == (0, "", True)


def test_shortened_hash_or_no_export_is_one_sentence(tmp_path: Path) -> None:
    for short in ("0123abcd", "", "x" * 64, "0" * 65):
        said = verified([], tmp_path, f"--seen={short}")
        assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
        assert "64 hexadecimal digits" in said.err
    for lines in ([{"type": "header"}], [{"a": 1}], [{"type": "poem"}]):
        assert verified(lines, tmp_path).status in {1, 2}
    missing = run_script(str(tmp_path / "nothing"))
    assert (missing.status, missing.out) == (2, "")
    assert "cannot be read as an export" in missing.err


def of_kind(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["type"] == kind]


def change(kind: str, index: int, part: str | None = None, **values: object) -> Change:
    """Change a line of a kind, or the object that is a part of it."""

    def changed(line: Line) -> Line:
        return line if part is None else line[part]

    return lambda lines: changed(of_kind(lines, kind)[index]).update(values)


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


def of_plan(**values: int) -> Change:
    return lambda lines: of_kind(lines, "reservation")[-1]["items"][0].update(values)


def free_step(lines: list[Line]) -> None:
    next(line for line in of_kind(lines, "plan_cost") if line["used"] == [0, 0, 1])["used"] = [0, 0, 0]


def limits(epsilon: float, delta: float = 1e-5) -> list[dict[str, float]]:
    return [{"epsilon": epsilon, "delta": delta}]


ANOTHER_DECISION, ANOTHER_EVENT = "decision 2: it is not the one that was made", "is missing, or is not the one"
CHANGES: list[tuple[Change, str]] = [
    (change("decision", 2, "entry", items=[["0" * 64, 1]]), ANOTHER_DECISION),
    (change("decision", 1, "entry", refusal_details="{}"), "decision 1: it is not the one"),
    (drop("decision", 1), "decision 1 is missing"),
    (drop("decision", -1), "decision 0: it is missing"),
    (change("run", 0, chain_head="0" * 64), "it is missing, or the head of the chain is another"),
    (change("run", 0, next_step=3), "its steps end at"),
    (shift("account", 2, "spent"), "its spent curve is not the sum"),
    (shift("account", 1, "held"), "its held curve is not the sum"),
    (change("account", 1, limits=limits(2.0)), "its limit was never epsilon 1.0 at delta 1e-05, which decision 0 of"),
    (change("account", 1, limits=limits(1.0, 0.1)), "account mimic/icu-team ("),
    (unlimit, "account mimic ("),
    (shift("price", 0, "curve"), "is not"),
    (drop("price", 0), "has no price"),
    (change("event", 0, canonical="{}"), "its description has another fingerprint"),
    (shift("reservation", 0, "reserved"), "its curve is not that of its events"),
    (of_plan(used=3), "what it says to be used is not what was charged"),
    (of_plan(count=5), "its curve is not that of its events"),
    (change("reservation", 1, status="committed", steps_executed=1), "what is left of it is not what was forfeited"),
    (change("reservation", 0, steps_executed=3), "what was executed is not what was charged"),
    (drop("audit_event", 3), "audit event 3 is missing"),
    (change("audit_event", 2, "entry", reason="x"), f"audit event 2 {ANOTHER_EVENT}"),
    (drop("audit_event", 1, last=0), "its limits are not those that the organisation's audit events"),
    (lambda lines: lines.remove(lines[-1]), "before its end"),
    (change("header", 0, format=2), "this script reads format 1"),
    (change("header", 0, organisation="org_x"), f"audit event 0 {ANOTHER_EVENT}"),
]


def test_changed_line_is_named(ended: Ledger, tmp_path: Path) -> None:
    text = json.dumps(exported(ended.database, population="mimic"))
    for apply, named in CHANGES:
        lines = json.loads(text)
        apply(lines)
        said = verified(lines, tmp_path)
        assert (said.status, said.err, said.out[:11]) == (1, "", "NOT SOUND: "), named
        assert named in said.out


def of_account(path: str, **values: object) -> Change:
    return lambda lines: next(line for line in lines if line.get("path") == path).update(values)


@pytest.mark.parametrize(
    ("name", "population", "change"),
    [
        ("composed", "group", of_account("group", composition="sequential")),
        ("composed", "group", of_account("group/south/both", parents=[])),
        ("planned", "mimic", free_step),
        ("refused", "mimic", of_account("mimic", limits=limits(5.0))),
    ],
)
def test_changed_tree_or_limit_is_found(tmp_path: Path, name: str, population: str, change: Change) -> None:
    with copied(name, tmp_path) as database:
        lines = exported(database, population=population)
    assert verified(lines, tmp_path).status == 0, name
    change(lines)
    said = verified(lines, tmp_path)
    assert (said.status, said.out[:9]) == (1, "NOT SOUND"), said


def test_of_partitions_the_largest_use_of_a_plan_counts(ledger: Ledger, tmp_path: Path) -> None:
    ledger.population(planned=[{"event": QUIET, "count": 20}, {"event": STEP}], **ATTESTED)
    for name, quiet, sampled in (("one", 3, 9), ("two", 8, 2)):
        ledger.budget(name, limit={"epsilon": 2.0, "delta": 1e-5})
        trainer = Trainer(ledger, ledger.run(f"mimic/{name}", name=name, event=STEP))
        assert trainer.steps(event=QUIET, count=quiet).status_code == 200
        assert trainer.steps(count=sampled).status_code == 200
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


UNKNOWN: list[tuple[dict[str, str], str]] = [
    *((scope, "either a run or a population") for scope in ({}, {"run": "run_x", "population": "mimic"})),
    *(({"run": "mimic"}, "There is no run"), ({"population": "mimic/icu-team"}, "There is no population")),
    ({"population": "x", "organisation": "nobody"}, "no organisation 'nobody'"),
]


def test_export_is_of_one_thing_that_is_there_and_readable(ended: Ledger, tmp_path: Path) -> None:
    for scope, words in UNKNOWN:
        with pytest.raises(InvalidInputError if "either" in words else NotFoundError, match=words):
            exported(ended.database, **scope)
    body = {"name": "mimic", "privacy_unit": "patient", "neighboring_relation": "replace_one", "limit": limits(1.0)[0]}
    assert ended.http.post("/v1/populations", json=body, headers=ended.headers("admin", "clinic")).status_code == 201
    with pytest.raises(InvalidInputError, match="Several organisations have a population 'mimic'"):
        exported(ended.database, population="mimic")
    lines = exported(ended.database, population="mimic", organisation="clinic")
    assert {line["type"] for line in lines} == {"header", "account", "audit_event", "end"}
    assert verified(lines, tmp_path).status == 0
    with tampering(ended.database) as tx:
        set_account(tx, TEAM, filter_weights="x")
    with pytest.raises(LedgerUnavailableError, match=r"accounts.filter_weights .*mimic/icu-team.* cannot be read"):
        exported(ended.database, population="mimic", organisation="hospital")


@pytest.mark.parametrize(
    "limit", [{"epsilon": 1.0, "delta": 0}, {"rho": 0.5}, {"rho": 0.5, "delta": 1e-9}, {"mu": 1.0}]
)
def test_limits_in_every_unit_and_their_exact_losses_are_proven(
    ledger: Ledger, tmp_path: Path, limit: dict[str, float]
) -> None:
    event = (
        {"type": "laplace", "epsilon": 0.1} if "epsilon" in limit else {"type": "gaussian", "noise_multiplier": 10.0}
    )
    ledger.population("survey", limit=limit)
    run = ledger.run("survey", event=event)
    for first_step, count in ((0, 3), (3, 1000)):
        ledger.post(f"/v1/runs/{run}/steps", {"first_step": first_step, "count": count}, "trainer")
    lines = exported(ledger.database, population="survey")
    assert verified(lines, tmp_path).status == 0
    [account] = [line for line in lines if line["type"] == "account" and line["path"] == "survey"]
    data = bytearray(b64decode(account["spent"]))
    data[-12] ^= 1  # of the last exact loss
    account["spent"] = b64encode(bytes(data)).decode()
    assert "its spent curve is not the sum of its rows" in verified(lines, tmp_path).out
