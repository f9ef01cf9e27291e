"""Exports: a stand-alone script finds a sound ledger sound, and names the first bad row of any other."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.accounting.events import Gaussian
from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.ledger.reservations import commit, forfeit
from app.ledger.step_events import StepEvent
from app.service.audit.export import export
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.service.reservation_rows import Reserver
from tests.service.tampering import set_account, tampering

NOISE = {"type": "gaussian", "noise_multiplier": 60.0}
SCRIPT = Path(__file__).parents[2] / "examples" / "verify_export.py"
NOW = datetime(2026, 12, 2, tzinfo=UTC)
Line = dict[str, Any]


def _charge(ledger: Ledger) -> None:
    """Two runs with steps and refusals; the first has a committed, a forfeited and an active plan, half used."""
    ledger.population()
    ledger.budget()
    run = ledger.run()
    for body in ({"count": 4}, {"count": 10**6}, {"event": NOISE, "count": 2}):
        ledger.post(f"/v1/runs/{run}/steps", body)
    trainer = Reserver(ledger.database, run)
    for end in (lambda plan: commit(plan, 2), forfeit):
        trainer.reserve(StepEvent(Gaussian(60.0), 3))
        trainer.close(end(trainer.spend(StepEvent(Gaussian(60.0), 1))))
    trainer.reserve(StepEvent(Gaussian(60.0), 4), StepEvent(Gaussian(90.0), 1))
    trainer.spend(StepEvent(Gaussian(60.0), 2))
    other = ledger.run(name="other", event=NOISE)
    ledger.post(f"/v1/runs/{other}/steps", {})


FURNISHED = {"charged": _charge}


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    """As furnished."""
    return ledger


def _export(ledger: Ledger, **scope: str) -> list[Line]:
    return [json.loads(line) for line in export(ledger.database, NOW, **scope)]


def _verified(lines: list[Line], folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    file = folder / "export.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return subprocess.run(
        [sys.executable, "-I", SCRIPT, file, *more], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_sound_population_is_found_sound_and_its_heads_are_printed(charged: Ledger, tmp_path: Path) -> None:
    before = dump(charged.database)
    lines = _export(charged, population="mimic")
    assert dump(charged.database) == before
    done = _verified(lines, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 balances recomputed" in done.stdout
    heads = {line["id"]: line["chain_head"] for line in lines if line["type"] == "run"}
    assert len(heads) == 2
    assert all(run in done.stdout and head in done.stdout for run, head in heads.items())


def test_a_sound_run_is_found_sound_by_itself(charged: Ledger, tmp_path: Path) -> None:
    for run in (line["id"] for line in _export(charged, population="mimic") if line["type"] == "run"):
        lines = _export(charged, run=run)
        assert {line["entry"]["run_id"] for line in lines if line["type"] == "decision"} == {run}
        assert [line["complete"] for line in lines if line["type"] == "account"] == [False, False, True]
        done = _verified(lines, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "1 balances recomputed" in done.stdout


def test_a_population_is_named_by_its_id_too(charged: Ledger) -> None:
    lines = _export(charged, population="mimic")
    assert _export(charged, population=lines[0]["id"]) == lines
    assert lines[0]["scope"] == "population"


def test_a_head_that_was_seen_is_found_again_and_another_is_not(charged: Ledger, tmp_path: Path) -> None:
    lines = _export(charged, population="mimic")
    seen = next(line["hash"] for line in lines if line["type"] == "decision")
    found = _verified(lines, tmp_path, "--seen", seen.upper())
    entry = next(line["entry"] for line in lines if line["type"] == "decision")
    assert found.returncode == 0
    assert f"seen: decision {entry['position']} of {entry['run_id']}\n" in found.stdout
    done = _verified(lines, tmp_path, "--seen", seen, "--seen", "0" * 64)
    assert done.returncode == 1
    assert f"hash {'0' * 64} is in no chain" in done.stdout


@pytest.mark.parametrize("short", ["0123abcd", "", "x" * 64, "0" * 65])
def test_a_shortened_hash_is_no_alarm(tmp_path: Path, short: str) -> None:
    done = _verified([], tmp_path, f"--seen={short}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "64 hexadecimal digits" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_export_is_read_from_a_pipe(charged: Ledger) -> None:
    lines = "".join(f"{line}\n" for line in export(charged.database, NOW, population="mimic"))
    done = subprocess.run(
        [sys.executable, "-I", SCRIPT, "-"], input=lines, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 balances recomputed" in done.stdout


def _shifted(text: str, units: int = 1) -> str:
    data = bytearray(base64.b64decode(text))
    data[24] = (data[24] + units) % 256
    return base64.b64encode(data).decode()


def _change(kind: str, index: int, **values: object) -> Callable[[list[Line]], None]:
    def change(lines: list[Line]) -> None:
        [line for line in lines if line["type"] == kind][index].update(values)

    return change


def _shift(kind: str, index: int, name: str) -> Callable[[list[Line]], None]:
    def shift(lines: list[Line]) -> None:
        line = [line for line in lines if line["type"] == kind][index]
        line[name] = _shifted(line[name])

    return shift


def _drop(kind: str, index: int) -> Callable[[list[Line]], None]:
    def drop(lines: list[Line]) -> None:
        lines.remove([line for line in lines if line["type"] == kind][index])
        lines[-1]["lines"] -= 1

    return drop


def _enter(index: int, **values: object) -> Callable[[list[Line]], None]:
    def change(lines: list[Line]) -> None:
        [line for line in lines if line["type"] == "decision"][index]["entry"].update(values)

    return change


def _unlimit(lines: list[Line]) -> None:
    for line in lines:
        if line["type"] == "account":
            line["limits"] = [None]


def _plan(**values: object) -> Callable[[list[Line]], None]:
    def change(lines: list[Line]) -> None:
        [line for line in lines if line["type"] == "reservation"][-1]["items"][0].update(values)

    return change


def _audit_event(index: int, **values: object) -> Callable[[list[Line]], None]:
    def change(lines: list[Line]) -> None:
        [line for line in lines if line["type"] == "audit_event"][index]["entry"].update(values)

    return change


def _first_audit_event_alone(lines: list[Line]) -> None:
    for line in [line for line in lines if line["type"] == "audit_event"][1:]:
        lines.remove(line)
        lines[-1]["lines"] -= 1


CHANGES: dict[str, tuple[Callable[[list[Line]], None], str]] = {
    "a charge's count": (_enter(2, items=[["0" * 64, 1]]), "decision 2: it is not the one that was made"),
    "an epsilon": (_enter(0, epsilon=0.0), "decision 0: it is not the one that was made"),
    "a refusal": (_enter(1, refusal_details="{}"), "decision 1: it is not the one that was made"),
    "a hash": (_change("decision", 2, hash="0" * 64), "decision 2: it is not the one that was made"),
    "a decision left out": (_drop("decision", 1), "decision 1 is missing"),
    "the last decision left out": (_drop("decision", -1), "decision 0: it is missing"),
    "a forged head": (_change("run", 0, chain_head="0" * 64), "it is missing, or the head of the chain is another"),
    "a next step": (_change("run", 0, next_step=3), "its steps end at"),
    "a run's spent curve": (_shift("account", 2, "spent"), "its spent curve is not the sum"),
    "a budget's spent curve": (_shift("account", 1, "spent"), "account mimic/icu-team ("),
    "a population's delta": (_change("account", 0, spent_delta=1), "account mimic ("),
    "a budget's held curve": (_shift("account", 1, "held"), "its held curve is not the sum"),
    "a budget's epsilon": (
        _change("account", 1, limits=[{"epsilon": 2.0, "delta": 1e-5}]),
        "its limit was never epsilon 1.0 at delta 1e-05, which decision 0 of run ",
    ),
    "a budget's delta": (_change("account", 1, limits=[{"epsilon": 1.0, "delta": 0.1}]), "account mimic/icu-team ("),
    "a run's limit that it had not": (
        _change("account", 2, limits=[{"epsilon": 9.0, "delta": 1e-5}]),
        "its limit was never",
    ),
    "every limit taken away": (_unlimit, "account mimic ("),
    "a price": (_shift("price", 0, "curve"), "is not"),
    "a price left out": (_drop("price", 0), "has no price"),
    "a price's delta": (_change("price", 0, delta=7), "is not"),
    "an event's description": (_change("event", 0, canonical="{}"), "its description has another fingerprint"),
    "a reserved curve": (_shift("reservation", 0, "reserved"), "its curve is not that of its plan"),
    "a plan's use": (_plan(used=3), "what it says to be used is not what was charged"),
    "a plan's length": (_plan(count=5), "its curve is not that of its plan"),
    "a forfeit taken back": (
        _change("reservation", 1, status="committed", steps_executed=1),
        "what is left of it is not what was forfeited",
    ),
    "an attestation": (_change("reservation", 0, steps_executed=3), "what was executed is not what was charged"),
    "a reservation's end": (_change("reservation", 2, status="committed", steps_executed=2), "curve is not the sum"),
    "an audit event left out": (_drop("audit_event", 3), "audit event 3 is missing"),
    "an audit event's reason": (
        _audit_event(2, reason="x"),
        "audit event 2 is missing, or is not the one that was recorded",
    ),
    "every audit event left out but the first": (
        _first_audit_event_alone,
        "its limits are not those that the organisation's audit events",
    ),
    "the end left out": (lambda lines: lines.remove(lines[-1]), "before its end"),
    "lines left out": (lambda lines: lines.remove(lines[1]), " lines; "),
    "another format": (_change("header", 0, format=2), "this script reads format 1"),
    "another organisation": (_change("header", 0, organisation="org_x"), "audit event 0 is missing, or is not the one"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_in_an_export_is_named(charged: Ledger, tmp_path: Path, what: str) -> None:
    change, named = CHANGES[what]
    lines = _export(charged, population="mimic")
    change(lines)
    done = _verified(lines, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("NOT SOUND: ")
    assert named in done.stdout


def test_a_limit_that_only_a_refusal_names_is_held_against_it(ledger: Ledger, tmp_path: Path) -> None:
    ledger.population(limit={"epsilon": 0.5, "delta": 1e-5})
    ledger.budget()
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {"count": 10**6}).json()["binding_account_path"] == "mimic"
    lines = _export(ledger, population="mimic")
    assert _verified(lines, tmp_path).returncode == 0
    _change("account", 0, limits=[{"epsilon": 5.0, "delta": 1e-5}])(lines)
    assert "account mimic (" in _verified(lines, tmp_path).stdout


def test_what_is_no_export_is_said_in_a_sentence(tmp_path: Path) -> None:
    for lines in ([{"type": "header"}], [{"a": 1}], [{"type": "poem"}]):
        done = _verified(lines, tmp_path)
        assert done.returncode in {1, 2}
        assert "Traceback" not in done.stderr
    missing = subprocess.run(
        [sys.executable, "-I", SCRIPT, tmp_path / "nothing"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "cannot be read as an export" in missing.stderr


@pytest.mark.parametrize("scope", [{}, {"run": "run_x", "population": "mimic"}])
def test_an_export_is_of_one_thing(charged: Ledger, scope: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="either a run or a population"):
        _export(charged, **scope)


@pytest.mark.parametrize(
    "scope",
    [{"run": "run_x"}, {"run": "mimic"}, {"population": "mimic/icu-team"}, {"population": "x"}],
)
def test_what_is_not_there_is_not_exported(charged: Ledger, scope: dict[str, str]) -> None:
    with pytest.raises(NotFoundError, match=r"There is no (run|population)"):
        _export(charged, **scope)
    with pytest.raises(NotFoundError, match="no organisation 'nobody'"):
        _export(charged, organisation="nobody", **scope)


def test_two_populations_of_a_name_are_told_apart_by_their_organisation(charged: Ledger, tmp_path: Path) -> None:
    body = {
        "name": "mimic",
        "privacy_unit": "patient",
        "neighboring_relation": "replace_one",
        "limit": {"epsilon": 1.0, "delta": 1e-5},
    }
    made = charged.http.post("/v1/populations", json=body, headers=charged.headers("admin", "clinic"))
    assert made.status_code == 201
    with pytest.raises(InvalidInputError, match="Several organisations have a population 'mimic'"):
        _export(charged, population="mimic")
    lines = _export(charged, population="mimic", organisation="clinic")
    assert {line["type"] for line in lines} == {"header", "account", "audit_event", "end"}
    assert _verified(lines, tmp_path).returncode == 0


def test_a_row_that_cannot_be_read_is_not_exported(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        set_account(tx, "mimic/icu-team", filter_weights="x")
    with pytest.raises(LedgerUnavailableError, match=r"accounts.filter_weights .*mimic/icu-team.* cannot be read"):
        _export(charged, population="mimic")
