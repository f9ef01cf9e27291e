"""What pages and the API read: how accounts stand, what can still be taken, and what their children spent."""

from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import numpy as np
import pytest
from sqlalchemy import Connection, update

from app.accounting.curves import RdpCurve, orders
from app.dashboard.formatting import severity_label
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.filter.limits import Limit
from app.ledger.scheduling.account_status import AccountStatus, Severity
from app.persistence.repositories import accounts
from app.persistence.repositories.usage_history import Sample
from app.persistence.tables import accounts as accounts_table
from app.service.accounts import availability
from app.service.auth.authentication import authenticate
from app.service.auth.request_context import RequestContext
from app.service.queries.account_status import with_epsilons
from app.service.queries.account_status_cache import AccountStatusCache
from app.service.queries.overview import BUDGETS, POPULATIONS, read_overview
from app.service.queries.spend_series import SpendSeries, spend_series
from tests.api.trainer import LOUD, Trainer, gaussian
from tests.conftest import Furnish, Ledger
from tests.service.prepared_ledgers import ATTESTED
from tests.service.tampering import TEAM, set_account, set_balance, tampering, write_account
from tests.statuses import status_at
from tests.waiting_reservations import OVER_TEN_DAYS, allocate, ask, later, preview

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def call_of(ledger: Ledger) -> RequestContext:
    """What a use case is given when a viewer asks."""
    at = datetime.now(UTC)
    caller = authenticate(ledger.database, ledger.headers("viewer")["Authorization"], at)
    return RequestContext(ledger.database, caller, at)


def statuses_of(ledger: Ledger, book: AccountStatusCache | None = None) -> dict[str, AccountStatus]:
    call = call_of(ledger)
    with ledger.database.read(call.organisation_id) as tx:
        return {each.path: each for each in (book or AccountStatusCache()).read(tx, call)}


def charge_two_populations(ledger: Ledger) -> None:
    for name in ("mimic", "imaging"):
        ledger.population(name)
        ledger.budget(parent=name)
        assert ledger.post(f"/v1/runs/{ledger.run(f'{name}/icu-team')}/steps", {}, "trainer").status_code == 200


def insure(ledger: Ledger) -> None:
    """Insurance claims that one team has used up, and another team that has hardly begun."""
    ledger.population("claims", limit=limit(1.0))
    ledger.budget("greedy", "claims", limit=limit(3.0))
    ledger.budget("idle", "claims", limit=limit(3.0))
    ledger.budget("deep", "claims/idle", limit=limit(0.5))
    greedy = Trainer(ledger, ledger.run("claims/greedy", event=gaussian(100.0)))
    assert greedy.steps(count=10_000, on_exceed="truncate").status_code == 200


FURNISHED: dict[str, Furnish] = {"charged": charge_two_populations, "insured": insure}


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    return ledger


def test_account_status_is_that_of_the_api(trainer: Trainer) -> None:
    ledger = trainer.ledger
    assert trainer.steps(count=100).status_code == 200
    reserved = trainer.reserved((LOUD, 50))
    found = statuses_of(ledger)
    for answer in (each for kind in ("populations", "budgets") for each in ledger.get(f"/v1/{kind}").json()["items"]):
        status = found[answer["path"]]
        assert (status.used, status.limit) == (answer["used"], Limit.of(answer["limit"]))
        assert status.used_including_reserved == answer["used_including_reserved"] > status.used
        assert status.has_reserved
        assert status.remaining == 1 - status.used_including_reserved
    with ledger.database.read(call_of(ledger).organisation_id) as tx:
        [budget] = [each for each in with_epsilons(tx, call_of(ledger), list(found.values())) if each.path == TEAM]
    assert budget.epsilon == ledger.get(f"/v1/budgets?path={TEAM}").json()["items"][0]["epsilon"]
    assert trainer.end(reserved, "void").status_code == 200
    assert not any(each.has_reserved for each in statuses_of(ledger).values())


def test_only_changed_accounts_are_read_again(charged: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    book = AccountStatusCache()
    asked: list[list[str]] = []
    read_many = accounts.read_many

    def counted(tx: Connection, organisation_id: str, ids: list[str]) -> list[AccountRecord]:
        asked.append(ids)
        return read_many(tx, organisation_id, ids)

    monkeypatch.setattr(accounts, "read_many", counted)
    first = statuses_of(charged, book)
    assert len(first) == 4
    assert statuses_of(charged, book) == first
    assert len(asked) == 1
    [run] = [each["id"] for each in charged.get("/v1/runs").json()["items"] if each["path"].startswith("imaging/")]
    assert charged.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    changed = statuses_of(charged, book)
    assert {path for path, each in changed.items() if each != first[path]} == {"imaging", "imaging/icu-team"}
    assert sorted(asked[-1]) == sorted(changed[path].id for path in ("imaging", "imaging/icu-team"))


DAMAGES: dict[str, Callable[[Connection], None]] = {
    "what was charged": lambda tx: set_account(tx, TEAM, uncompacted_charges="[1"),
    "its curve": lambda tx: set_balance(tx, TEAM, spent_curve=b"1234567"),
    "its weights": lambda tx: set_account(tx, TEAM, filter_weights='{"indices": [10000], "deltas": [1], "reserve": 0}'),
    "its plan's usage": lambda tx: set_account(tx, TEAM, plan_usage='{"bud": [[-1], [0]]}'),
    "its policy": lambda tx: set_account(tx, TEAM, policy="{"),
}


def test_rest_of_a_whole_is_computed_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.population(limit=limit(0.5), **ATTESTED)
    ledger.budget()
    book = AccountStatusCache()
    first = statuses_of(ledger, book)
    assert first[TEAM].left == first["mimic"].left == 1.0
    monkeypatch.setattr(availability, "read_tolerating_damage", lambda *_: pytest.fail("it was read again"))
    assert statuses_of(ledger, book)[TEAM].left == first[TEAM].left


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_account_comes_first_and_hides_no_other(charged: Ledger, what: str) -> None:
    book = AccountStatusCache()
    whole = statuses_of(charged, book)
    with tampering(charged.database) as tx:
        DAMAGES[what](tx)
        tx.execute(update(accounts_table).where(accounts_table.c.path == TEAM).values(updated_at=NEW_YEAR))
    found = statuses_of(charged, book)
    hurt = found.pop(TEAM)
    shown = (hurt.name, hurt.limit, hurt.remaining, hurt.severity, severity_label(hurt))
    assert shown == ("icu-team", None, 0.0, Severity.OVER, "unreadable")
    assert found == {path: each for path, each in whole.items() if path != TEAM}
    seen = read_overview(call_of(charged), book)
    assert [tree.status.path for tree in seen.trees] == ["mimic", "imaging"]
    assert [severity_label(child.status) for child in seen.trees[0].children] == ["unreadable"]
    assert (seen.severities[Severity.OVER], sum(seen.severities.values())) == (1, 4)


def status(path: str, share: float) -> AccountStatus:
    """An account that has used a part of its limit."""
    return status_at(
        path, limit=Limit(2.0, 1e-6), used=share, used_including_reserved=share, remaining=max(0.0, 1 - share)
    )


def ending(days: int) -> AccountStatus:
    """An account that is empty in so many days."""
    return status("p", 0.1)._replace(rated_at=NEW_YEAR, empty_at=NEW_YEAR + timedelta(days=days))


@pytest.mark.parametrize(
    ("account", "level"),
    [
        (status("p", 1.01), "over"),
        (status("p", 0.0)._replace(quarantine="its balance is not proven"), "over"),
        (status("p", 0.99), "exhausted"),
        (status("p", 0.1)._replace(used_including_reserved=0.985, has_reserved=True), "exhausted"),
        (status("p", 0.8), "low"),
        (ending(7), "low"),
        (status("p", 0.5), "half"),
        (ending(30), "half"),
        (status("p", 0.49), "ok"),
        (ending(32), "ok"),
    ],
)
def test_severity_of_an_account(account: AccountStatus, level: str) -> None:
    assert account.severity == Severity(level)
    assert severity_label(account)


def test_most_urgent_of_many_accounts_are_shown(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{number:03}" for number in range(POPULATIONS + 20)]
    many = [status(name, 0.1) for name in names]
    places = [(name, place, team) for place, name in enumerate(names) for team in range(3)]
    teams = [status(f"{name}/t{team}", (place * 3 + team) / 1000) for name, place, team in places]
    monkeypatch.setattr(AccountStatusCache, "read", lambda *_: [*many, *teams])
    seen = read_overview(call_of(ledger), AccountStatusCache())
    assert (seen.populations, seen.budgets, len(seen.trees)) == (len(many), len(teams), POPULATIONS)
    shown = [child.status for tree in seen.trees for child in tree.children]
    assert (len(shown), sum(tree.hidden for tree in seen.trees)) == (BUDGETS, 3 * POPULATIONS - BUDGETS)
    assert seen.trees[0].status.path == "p119"
    roots, paths = {tree.status.id for tree in seen.trees}, {each.path for each in shown}
    hidden = [each.used for each in teams if each.population_id in roots and each.path not in paths]
    assert max(hidden) <= min(each.used for each in shown)
    found = read_overview(call_of(ledger), AccountStatusCache(), wanted=" P007/t1 ")
    assert [tree.status.path for tree in found.trees] == ["p007"]


def grown(children: int, moments: int) -> SpendSeries:
    """Runs of so many children that are charged one unit at each order, one after the other."""
    times, runs = [NEW_YEAR + timedelta(minutes=at) for at in range(moments)], [f"run-{at}" for at in range(children)]
    taken = [Sample(run, 0, 1, charged=True, reached=1, steps=1, at=times[at]) for at, run in enumerate(runs)]
    items, prices = {(run, 0): [("event", 1)] for run in runs}, {"event": RdpCurve(np.ones(orders(1).size, "i8"), 3)}
    return spend_series(taken, items, {run: [run] for run in runs}, prices, times, whole=True)


@pytest.mark.parametrize(("most", "counted"), [(None, 10), (10, 10), (4, 4)])
def test_children_add_up_or_the_largest_count(most: int | None, counted: int) -> None:
    curves, deltas = grown(10, 20).total(most)
    assert curves[:, 0].tolist() == curves[:, -1].tolist() == [float(min(at + 1, counted)) for at in range(20)]
    assert deltas.tolist() == [3.0 * min(at + 1, counted) for at in range(20)]


def limit(epsilon: float) -> dict[str, float]:
    return {"epsilon": epsilon, "delta": 1e-5}


@pytest.fixture
def insured(ledger: Ledger) -> Ledger:
    return ledger


def test_idle_child_of_an_exhausted_population_is_blocked_by_it(insured: Ledger) -> None:
    found = statuses_of(insured)
    assert found["claims/idle"].remaining == 1.0
    for each in (found["claims/idle"], found["claims/idle/deep"]):
        assert each.left == found["claims"].remaining < 0.02
        assert each.blocked_by and each.blocked_by.account_path == "claims"  # noqa: PT018 - for mypy
        assert (each.severity, severity_label(each)) == (Severity.EXHAUSTED, "blocked")
    assert found["claims"].blocked_by is None
    seen = read_overview(call_of(insured), AccountStatusCache())
    assert seen.severities == {Severity.EXHAUSTED: 4}


def test_api_and_forecast_show_what_is_available_and_what_limits_it(insured: Ledger) -> None:
    population = insured.get("/v1/populations").json()["items"][0]
    assert population["available"]["account"] == population["id"]
    ids = {}
    for budget in insured.get("/v1/budgets").json()["items"]:
        assert budget["available"] == population["available"], budget["path"]
        assert insured.get(f"/v1/budgets/{budget['id']}").json()["available"] == budget["available"]
        ids[budget["path"]] = budget["id"]
    assert population["available"]["account_path"] == "claims"
    answer = insured.get(f"/v1/accounts/{ids['claims/idle']}/forecast").json()
    assert (answer["exhaustion_at"], answer["available"]["account_path"]) == (None, "claims")
    assert answer["available"]["share"] < 0.02
    own = insured.run("claims/idle", name="limited", limit=limit(0.4))
    assert insured.get(f"/v1/accounts/{own}/forecast").json()["available"] == answer["available"]
    unlimited = insured.run("claims/idle")
    assert "no limit of its own" in insured.get(f"/v1/accounts/{unlimited}/forecast").json()["detail"]
    untouched = insured.population("mimic")
    assert untouched["available"] == {"share": 1.0, "account": untouched["id"], "account_path": "mimic"}


def test_nothing_is_available_under_a_quarantined_or_damaged_account(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    ledger.budget("deep", "mimic/icu-team")
    for reason, charges in (("its balance is not proven", "{}"), (None, "[1")):
        write_account(ledger.database, TEAM, quarantine_reason=reason, uncompacted_charges=charges)
        deep = statuses_of(ledger)["mimic/icu-team/deep"]
        assert (deep.left, deep.severity) == (0.0, Severity.EXHAUSTED)
        [answer] = ledger.get("/v1/budgets?path=mimic/icu-team/deep").json()["items"]
        assert (answer["available"]["share"], answer["available"]["account_path"]) == (0.0, "mimic/icu-team")


def available(ledger: Ledger, account: str) -> dict[str, Any]:
    """What an account says that can be taken, and by which account that is limited."""
    kind = "populations" if account.startswith("pop_") else "budgets"
    return dict(ledger.get(f"/v1/{kind}/{account}").json()["available"])


def test_available_budget_leaves_out_the_locked_part_and_ends_where_no_step_fits(ledger: Ledger) -> None:
    population = str(ledger.population()["id"])
    budget = str(ledger.budget(limit=limit(3.0))["id"])
    whole = available(ledger, budget)["share"]
    allocate(ledger, population, unlock=OVER_TEN_DAYS | {"since": later()})
    assert available(ledger, budget)["share"] == 0
    with pytest.raises(httpx2.HTTPStatusError, match="422"):  # one share by its id and by its path
        allocate(ledger, population, shares=[{"account": each} for each in (budget, TEAM)])
    allocate(ledger, population, unlock={"type": "over_time", "over_seconds": 10, "parts": 1})
    assert available(ledger, budget)["share"] == whole
    allocate(ledger, population, unlock=OVER_TEN_DAYS)
    assert available(ledger, budget) == available(ledger, population)
    assert available(ledger, budget)["account"] == population
    assert available(ledger, budget)["share"] == pytest.approx(whole / 10)
    before = available(ledger, budget)["share"]
    assert ask(ledger, "first", 20).json()["status"] == "active"
    left = available(ledger, budget)["share"]
    assert 0 < left < before
    forecasts = [ledger.get(f"/v1/accounts/{each}/forecast").json() for each in (budget, population)]
    assert [each["available"]["share"] for each in forecasts] == [left, left]
    most = bisect_left(range(1, 400), 1, key=lambda steps: int(not preview(ledger, budget, steps).json()["fits"]))
    assert ask(ledger, "all", most).json()["status"] == "active"
    assert not preview(ledger, budget, 1).json()["fits"]
    assert available(ledger, population)["share"] < 0.01
