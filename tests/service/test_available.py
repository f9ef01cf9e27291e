"""What can still be taken, as pages, the API, forecasts and metrics say it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from app.dashboard.formatting import severity_label
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts
from app.persistence.repositories.accounts import find_by_path
from app.service.monitoring.database_collector import DatabaseCollector
from app.service.queries.account_status import AccountStatus, Severity
from app.service.queries.account_status_cache import AccountStatusCache
from app.service.queries.overview import read_overview
from tests.conftest import Ledger
from tests.dashboard.html_reader import visit, words
from tests.login_helpers import signed_in
from tests.service.tampering import set_account, tampering
from tests.service.test_queries import call_of, statuses_of

QUIET = {"type": "gaussian", "noise_multiplier": 100.0}
SITES = {"composition": "parallel", "attestation": "each patient is treated at one site"}


def limit(epsilon: float) -> dict[str, float]:
    return {"epsilon": epsilon, "delta": 1e-5}


def charge(ledger: Ledger, budget: str, count: int = 1, name: str = "model") -> None:
    run = ledger.run(budget, event=QUIET, name=name)
    taken = ledger.post(f"/v1/runs/{run}/steps", {"count": count, "on_exceed": "truncate"}, "trainer")
    assert taken.status_code == 200, taken.text


@pytest.fixture
def insured(ledger: Ledger) -> Ledger:
    """Insurance claims that one team has used up, and another team that has hardly begun."""
    ledger.population("claims", limit=limit(1.0))
    ledger.budget("greedy", "claims", limit=limit(3.0))
    ledger.budget("idle", "claims", limit=limit(3.0))
    ledger.budget("deep", "claims/idle", limit=limit(0.5))
    charge(ledger, "claims/greedy", 10_000)
    return ledger


def check_blocked(status: AccountStatus, population: AccountStatus) -> None:
    assert status.free == population.remaining < 0.02
    assert status.blocked_by is not None
    assert status.blocked_by.account_path == "claims"
    assert (status.severity, severity_label(status)) == (Severity.EXHAUSTED, "blocked")


def test_an_idle_child_of_an_exhausted_population_is_blocked_by_it(insured: Ledger) -> None:
    found = statuses_of(insured)
    assert found["claims/idle"].remaining == 3.0
    for path in ("claims/idle", "claims/idle/deep"):
        check_blocked(found[path], found["claims"])
    assert found["claims"].blocked_by is None
    seen = read_overview(call_of(insured), AccountStatusCache())
    assert seen.severities == {Severity.EXHAUSTED: 4}


def test_the_api_says_what_can_be_taken_and_what_limits_it(insured: Ledger) -> None:
    population = insured.get("/v1/populations").json()["items"][0]
    assert population["available"]["account"] == population["id"]
    for budget in insured.get("/v1/budgets").json()["items"]:
        assert budget["available"] == population["available"], budget["path"]
        assert insured.get(f"/v1/budgets/{budget['id']}").json()["available"] == budget["available"]
    assert population["available"]["account_path"] == "claims"
    untouched = insured.population("mimic")
    assert untouched["available"] == {"epsilon": 3.0, "account": untouched["id"], "account_path": "mimic"}


def test_a_forecast_of_a_blocked_account_does_not_say_that_all_is_well(insured: Ledger) -> None:
    ids = {each["path"]: each["id"] for each in insured.get("/v1/budgets").json()["items"]}
    answer = insured.get(f"/v1/accounts/{ids['claims/idle']}/forecast").json()
    assert answer["exhaustion_at"] is None
    assert answer["available"]["account_path"] == "claims"
    assert answer["available"]["epsilon"] < 0.02
    own = insured.run("claims/idle", name="limited", limit=limit(0.4))
    assert insured.get(f"/v1/accounts/{own}/forecast").json()["available"] == answer["available"]


def test_pages_name_the_account_that_blocks(insured: Ledger) -> None:
    cookie = signed_in(insured, "viewer")
    overview = words(visit(insured, "/", cookie))
    assert "free: blocked by claims" in overview
    [idle] = [each["id"] for each in insured.get("/v1/budgets?path=claims/idle").json()["items"]]
    page = words(visit(insured, f"/accounts/{idle}", cookie))
    assert "blocked : blocked by claims . Its own limit leaves 3.000." in page, page


def test_metrics_count_and_name_what_can_be_taken(insured: Ledger) -> None:
    state: Any = insured.http.app.state
    stats = DatabaseCollector(state.store, signs=False).read_stats()
    available = {each.path: each.available for each in stats.uses}
    assert available["claims/idle/deep"] == available["claims"] == statuses_of(insured)["claims"].remaining
    assert all(each.unavailable_share > 0.98 for each in stats.uses)


def test_of_disjoint_parts_each_has_what_the_others_do_not_take(ledger: Ledger) -> None:
    ledger.population("sites", limit=limit(1.0), **SITES)
    for name in ("north", "south"):
        ledger.budget(name, "sites", limit=limit(2.0))
        ledger.budget("team", f"sites/{name}", limit=limit(3.0))
    charge(ledger, "sites/north/team", 10_000)
    found = statuses_of(ledger)
    assert found["sites"].remaining < 0.02
    assert (found["sites/north/team"].free, found["sites/north"].free) == (found["sites"].remaining,) * 2
    for path in ("sites/south", "sites/south/team"):
        assert (found[path].free, found[path].severity) == (1.0, Severity.HALF)
        assert found[path].blocked_by is not None
    answers = {each["path"]: each["available"] for each in ledger.get("/v1/budgets").json()["items"]}
    assert {path: each["epsilon"] for path, each in answers.items()} == {path: found[path].free for path in answers}
    charge(ledger, "sites/south/team", name="other")
    after = statuses_of(ledger)["sites/south"]
    with ledger.database.read(ALL_TENANTS) as tx:
        organisation = call_of(ledger).organisation_id
        whole, south = (find_by_path(tx, organisation, path) for path in ("sites", "sites/south"))
    assert whole is not None
    assert south is not None
    assert after.free == 1.0 - whole.account.epsilon(south.account.spent), "by the filter of the account that limits it"


def test_parts_are_read_again_only_when_something_changed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.population("sites", limit=limit(1.0), **SITES)
    for name in ("north", "south"):
        ledger.budget(name, "sites", limit=limit(2.0))
    charge(ledger, "sites/north", 10)
    book = AccountStatusCache()
    first = statuses_of(ledger, book)
    monkeypatch.setattr(accounts, "read_many", None)
    assert statuses_of(ledger, book) == first
    monkeypatch.undo()
    charge(ledger, "sites/south", 10_000, name="other")
    assert statuses_of(ledger, book) != first


def test_quarantine_and_damage_above_leave_nothing(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    ledger.budget("deep", "mimic/icu-team")
    with tampering(ledger.database) as tx:
        set_account(tx, "mimic/icu-team", quarantine_reason="its balance is not proven")
    deep = statuses_of(ledger)["mimic/icu-team/deep"]
    assert (deep.free, deep.severity) == (0.0, Severity.EXHAUSTED)
    [answer] = ledger.get("/v1/budgets?path=mimic/icu-team/deep").json()["items"]
    assert (answer["available"]["epsilon"], answer["available"]["account_path"]) == (0.0, "mimic/icu-team")
    with tampering(ledger.database) as tx:
        set_account(tx, "mimic/icu-team", quarantine_reason=None, uncompacted_charges="[1")
    assert statuses_of(ledger)["mimic/icu-team/deep"].free == 0.0
    [answer] = ledger.get("/v1/budgets?path=mimic/icu-team/deep").json()["items"]
    assert (answer["available"]["epsilon"], answer["available"]["account_path"]) == (0.0, "mimic/icu-team")


def test_a_key_of_one_team_knows_what_blocks_it(insured: Ledger) -> None:
    with insured.database.read(ALL_TENANTS) as tx:
        call = call_of(insured, now=datetime.now(UTC))
        idle = find_by_path(tx, call.organisation_id, "claims/idle")
        assert idle is not None
        found = {each.path: each for each in AccountStatusCache().read(tx, call, within=idle.account.id)}
        assert sorted(found) == ["claims/idle", "claims/idle/deep"]
    for status in found.values():
        check_blocked(status, statuses_of(insured)["claims"])
