"""What Prometheus reads: counted where it happens, and no name told to strangers."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from app.configuration.settings import Settings
from app.persistence.write_probe import Fault, Rehearsal
from app.service import readiness
from app.service.monitoring.database_collector import DatabaseCollector
from app.service.monitoring.exposition import SHARED_FOLDER
from tests.api.conftest import SeededLedger, furnish
from tests.api.trainer import HUGE
from tests.asgi import AppClient
from tests.databases import new_database
from tests.ledgers import Ledger, furnished, open_ledger
from tests.service.tampering import tampering
from tests.waiting_reservations import OVER_TEN_DAYS, allocate

TOKEN = "only-for-prometheus"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(text: str) -> Samples:
    """Every sample, by its name and its labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((f"epsilon_ledger_{name}", frozenset(labels.items())), 0.0)


def _scrape(ledger: Ledger, **headers: str) -> httpx2.Response:
    return ledger.http.get("/metrics", headers=headers)


def _read(ledger: Ledger) -> Samples:
    state: Any = ledger.http.app.state
    state.integrity.check()
    reply = _scrape(ledger, Authorization=f"Bearer {TOKEN}").raise_for_status()
    return samples_of(reply.text)


@pytest.fixture
def watched(tmp_path: Path, database_kind: str) -> Iterator[SeededLedger]:
    there: SeededLedger = furnished(database_kind, furnish)[0]
    with (
        new_database(database_kind, tmp_path, furnish=furnish) as url,
        open_ledger(tmp_path, url, metrics_token=TOKEN) as ledger,
    ):
        yield replace(there, ledger=ledger)


HERE = ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1")
ELSEWHERE = ("192.0.2.7", "10.0.0.1", "2001:db8::1", "::ffff:192.0.2.7", "", "localhost.example")


def test_metrics_without_a_token_name_no_account_and_are_read_from_this_machine_only(shared: SeededLedger) -> None:
    reply = _scrape(shared.ledger)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert "epsilon_ledger_decisions_total" in reply.text
    for name in ("mimic", "icu-team", "hospital", "clinic", "org_", "pop_", "bud_", "run_0", "key_0"):
        assert name not in reply.text
    assert 'kind="population"' in reply.text
    for peer in (*HERE, *ELSEWHERE):
        client = AppClient(shared.ledger.http.app, client=(peer, 50000), portal=shared.ledger.http.portal)
        reply = client.get("/metrics")
        assert reply.status_code == (200 if peer in HERE else 401), peer
    assert "EPSILON_LEDGER_METRICS_TOKEN_FILE" in reply.json()["detail"]
    assert "epsilon_ledger_" not in reply.text.replace(reply.json()["detail"], "")
    for header in ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP"):  # a proxy of this machine
        assert _scrape(shared.ledger, **{header: "127.0.0.1"}).status_code == 401, header


def test_metrics_with_a_token_are_refused_without_it_and_read_from_anywhere(watched: SeededLedger) -> None:
    for sent in (None, "Bearer other-for-prometheus", f"Basic {TOKEN}", TOKEN, *watched.ledger.headers().values()):
        reply = _scrape(watched.ledger, **({"Authorization": sent} if sent else {}))
        assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
        assert "mimic" not in reply.text
    elsewhere = AppClient(watched.ledger.http.app, client=("192.0.2.7", 50000), portal=watched.ledger.http.portal)
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Forwarded-For": "198.51.100.3"}
    assert elsewhere.get("/metrics", headers=headers).status_code == 200


def test_with_the_token_the_fullest_accounts_are_named(watched: SeededLedger) -> None:
    found = _read(watched.ledger)
    named = [dict(labels) for name, labels in found if name.endswith("account_used_ratio")]
    assert len({labels["organisation"] for labels in named}) == 1
    accounts = {labels["account"]: labels["kind"] for labels in named}
    assert accounts == {"mimic": "population", "mimic/icu-team": "budget", "mimic/icu-team/sweep": "budget"}
    population = next(labels for labels in named if labels["account"] == "mimic")
    account = watched.ledger.get(f"/v1/populations/{watched.population}").json()
    assert _value(found, "account_used_ratio", **population) == account["used"] > 0
    assert _value(found, "account_left_ratio", **population) == account["available"]["share"] < 1
    assert not [labels for name, labels in found if name.endswith("account_unlocked_ratio")]
    allocate(watched.ledger, watched.population, unlock=OVER_TEN_DAYS)
    unlocked = {labels: value for (name, labels), value in _read(watched.ledger).items() if "account_unlocked" in name}
    assert unlocked == {frozenset(population.items()): 0.1}


def test_decisions_are_counted_by_what_became_of_them(watched: SeededLedger) -> None:
    before = _read(watched.ledger)
    ask: dict[str, Any] = {"first_step": 1, "count": 3}
    bodies: list[dict[str, Any]] = [ask, ask, {"event": HUGE}, {"count": 2, "mode": "report"}, {"first_step": 99}]
    assert [watched.steps(**body).status_code for body in bodies] == [200, 200, 403, 200, 409]
    after = _read(watched.ledger)

    def more(name: str, **labels: str) -> float:
        return _value(after, name, **labels) - _value(before, name, **labels)

    outcomes = ("admitted", "refused", "reported", "replayed")
    assert [more("decisions_total", outcome=outcome) for outcome in outcomes] == [1, 1, 1, 1]
    assert [more("steps_total", outcome=outcome) for outcome in outcomes[:3]] == [3, 1, 2]
    assert more("step_authorization_duration_seconds_count") == 4
    assert more("problems_total", code="budget_exceeded") == more("problems_total", code="sequence_gap") == 1
    route = {"method": "POST", "route": "/v1/runs/{run_id}/steps"}
    counts = [more("http_request_duration_seconds_count", **route, status=status) for status in ("2xx", "4xx")]
    assert counts == [3, 2]
    assert more("commit_batch_size_count") == more("commit_duration_seconds_count") >= 5


def test_request_makes_no_label_up(watched: SeededLedger) -> None:
    _read(watched.ledger)  # a scrape has labels of its own
    before = {key for key in _read(watched.ledger) if "mimic" not in str(key)}
    for number in range(3):
        watched.ledger.http.request(f"BREW{number}", f"/v1/runs/secret{number}/teapot")
        watched.ledger.http.get(f"/v1/runs/run_secret{number}")
    made = [labels for name, labels in _read(watched.ledger).keys() - before if name.endswith("_count")]
    assert ("secret" in str(made), "BREW" in str(made), len(made) <= 2) == (False, False, True)


def test_history_that_was_exchanged_is_counted_without_verify(watched: SeededLedger) -> None:
    first = _read(watched.ledger)
    assert _value(first, "oldest_unsigned_entry_age_seconds") > 0
    assert _value(first, "alert_deliveries_pending") >= 1
    assert watched.ledger.post("/v1/checkpoints", None, "auditor").status_code == 201
    signed = _read(watched.ledger)
    assert _value(signed, "last_checkpoint_timestamp_seconds") > 0
    assert math.isclose(_value(signed, "organisations"), 2)
    with tampering(watched.ledger.database) as tx:
        for table in ("audit_entries", "decisions"):
            tx.exec_driver_sql(f"UPDATE {table} SET entry_hash = zeroblob(32)")  # noqa: S608 - a name of ours
    after = _read(watched.ledger)
    for name in ("checkpoint_mismatches", "run_chain_mismatches"):
        assert (_value(signed, name), _value(after, name)) == (0, 1)


def test_account_whose_balance_cannot_be_read_hides_no_other(watched: SeededLedger) -> None:
    budgets = "WHERE kind = 'budget'"
    for damage in (
        f"UPDATE accounts SET uncompacted_charges = '[1' {budgets}",  # noqa: S608 - words of ours
        f"DELETE FROM balances WHERE account_id IN (SELECT id FROM accounts {budgets})",  # noqa: S608 - words of ours
    ):
        with tampering(watched.ledger.database) as tx:
            tx.exec_driver_sql(damage)
        named = [
            dict(labels)["account"] for name, labels in _read(watched.ledger) if name.endswith("_account_used_ratio")
        ]
        assert named == ["mimic"]


def test_metrics_of_the_database_are_cached_for_a_while(shared: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = shared.ledger.http.app.state
    monkeypatch.setattr(state.ledger_stats, "cache_seconds", 3600.0)
    _scrape(shared.ledger)

    def read(*_: object) -> None:
        raise AssertionError("looked again")

    monkeypatch.setattr(DatabaseCollector, "read_stats", read)
    assert _scrape(shared.ledger).status_code == 200


def test_database_that_is_gone_is_told_and_the_rest_as_well(
    watched: SeededLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "rehearse_everywhere", lambda _: Rehearsal(Fault.SILENT))
    found = _read(watched.ledger)
    assert found["epsilon_ledger_ready", frozenset()] == 0
    assert "mimic" not in str(found)
    assert ("epsilon_ledger_decisions_total", frozenset({("outcome", "admitted")})) in found


def test_worker_that_was_killed_while_it_began_hides_no_other(
    shared: SeededLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path))
    other: Any = MmapedDict(str(tmp_path / "counter_2.db"))  # type: ignore[no-untyped-call]
    other.write_value(mmap_key("steps", "steps_total", [], [], "Steps."), 3.0, 0.0)
    other.close()
    (tmp_path / "counter_1.db").touch()
    reply = _scrape(shared.ledger).raise_for_status()
    assert samples_of(reply.text)["steps_total", frozenset()] == 3


WRONG_TOKENS: list[tuple[dict[str, Any], str]] = [
    ({"metrics_token": "short"}, "at least 16"),
    ({"metrics_token_file": "/nowhere/token"}, "EPSILON_LEDGER_METRICS_TOKEN_FILE cannot be read"),
    ({"metrics_token_file": __file__}, "holds no token"),
    ({"metrics_token_file": "/nowhere", "metrics_token": TOKEN}, "set either EPSILON_LEDGER_METRICS_TOKEN or"),
]


def test_token_is_read_from_a_file_and_a_wrong_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert Settings(metrics_token_file=str(file)).resolved_metrics_token == TOKEN
    assert TOKEN not in repr(Settings(metrics_token=TOKEN))
    for given, answer in WRONG_TOKENS:
        with pytest.raises(ValidationError, match=answer):
            Settings(**given)
