"""What pages read: how accounts stand, in which order, when that is new, and what their children spent."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy import Connection, update

from app.accounting.curves import RdpCurve, orders
from app.dashboard.formatting import severity_label
from app.ledger.account_records import AccountRecord
from app.ledger.accounts import AccountKind
from app.ledger.filters import Limit
from app.persistence.repositories import accounts
from app.persistence.repositories.usage_history import Sample
from app.persistence.tables import accounts as accounts_table
from app.service.auth.authentication import Principal, authenticate
from app.service.auth.request_context import RequestContext
from app.service.queries.account_status import AccountStatus, Severity
from app.service.queries.account_status_cache import AccountStatusCache
from app.service.queries.overview import BUDGETS, POPULATIONS, read_change_token, read_overview, trees_of
from app.service.queries.spend_series import SpendSeries, spend_series
from tests.conftest import SAMPLED, Ledger
from tests.service.tampering import TEAM, set_account, set_balance, tampering

NOISY = {"type": "gaussian", "noise_multiplier": 0.5}
WIDE = {"epsilon": 2.5, "delta": 1e-5}
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def call_of(ledger: Ledger, role: str = "viewer", now: datetime | None = None) -> RequestContext:
    """What a use case is given when somebody with this role asks."""
    at = now or datetime.now(UTC)
    caller: Principal = authenticate(ledger.database, ledger.headers(role)["Authorization"], at)
    return RequestContext(ledger.database, caller, at)


def statuses_of(ledger: Ledger, book: AccountStatusCache | None = None) -> dict[str, AccountStatus]:
    call = call_of(ledger)
    with ledger.database.read(call.organisation_id) as tx:
        return {each.path: each for each in (book or AccountStatusCache()).read(tx, call)}


def test_account_status_is_that_of_the_api(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget(limit=WIDE)
    run = ledger.run()
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 100}, "trainer").status_code == 200
    plan = {"plan": [{"event": SAMPLED, "count": 50}]}
    reserved = ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer")
    assert reserved.status_code == 201
    found = statuses_of(ledger)
    for listed in ("/v1/populations", "/v1/budgets"):
        for answer in ledger.get(listed).json()["items"]:
            status = found[answer["path"]]
            assert status.epsilon == answer["epsilon"]
            assert status.limit == Limit(**answer["limit"])
            assert status.epsilon_including_reserved > status.epsilon
            assert status.has_reserved
            assert status.remaining == status.limit.epsilon - status.epsilon_including_reserved
    voided = ledger.post(f"/v1/reservations/{reserved.json()['id']}/void", {}, "trainer")
    assert voided.status_code == 200
    assert not any(each.has_reserved for each in statuses_of(ledger).values())


def test_only_changed_accounts_are_read_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mimic", "imaging"):
        ledger.population(name)
        ledger.budget(parent=name)
    run = ledger.run("imaging/icu-team")
    book = AccountStatusCache()
    asked: list[list[str]] = []
    read_many = accounts.read_many

    def counted(tx: Connection, organisation_id: str, ids: list[str]) -> list[AccountRecord]:
        asked.append(ids)
        return read_many(tx, organisation_id, ids)

    monkeypatch.setattr(accounts, "read_many", counted)
    first = statuses_of(ledger, book)
    assert len(first) == 4
    assert statuses_of(ledger, book) == first
    assert len(asked) == 1
    assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    changed = statuses_of(ledger, book)
    assert {path for path, each in changed.items() if each != first[path]} == {"imaging", "imaging/icu-team"}
    assert sorted(asked[1]) == sorted(changed[path].id for path in ("imaging", "imaging/icu-team"))


Damage = Callable[[Connection], None]
DAMAGES: dict[str, Damage] = {
    "what was charged": lambda tx: set_account(tx, TEAM, uncompacted_charges="[1"),
    "its curve": lambda tx: set_balance(tx, TEAM, spent_curve=b"1234567"),
    "its weights": lambda tx: set_account(
        tx, TEAM, filter_weights='{"indices": [100000], "deltas": [1e-06], "reserve": 0}'
    ),
    "its plan's usage": lambda tx: set_account(tx, TEAM, plan_usage='{"bud": [[-1], [0]]}'),
    "its policy": lambda tx: set_account(tx, TEAM, policy="{"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_account_comes_first_and_hides_no_other(ledger: Ledger, what: str) -> None:
    for name in ("mimic", "imaging"):
        ledger.population(name)
        ledger.budget(parent=name)
        assert ledger.post(f"/v1/runs/{ledger.run(f'{name}/icu-team')}/steps", {}, "trainer").status_code == 200
    book = AccountStatusCache()
    whole = statuses_of(ledger, book)
    with tampering(ledger.database) as tx:
        DAMAGES[what](tx)
        tx.execute(update(accounts_table).where(accounts_table.c.path == TEAM).values(updated_at=NEW_YEAR))
    found = statuses_of(ledger, book)
    hurt = found.pop(TEAM)
    assert (hurt.name, hurt.limit, hurt.remaining, hurt.severity, severity_label(hurt)) == (
        "icu-team",
        None,
        0.0,
        Severity.OVER,
        "unreadable",
    )
    assert found == {path: each for path, each in whole.items() if path != TEAM}
    seen = read_overview(call_of(ledger), book)
    assert [tree.status.path for tree in seen.trees] == ["mimic", "imaging"]
    assert [severity_label(child.status) for child in seen.trees[0].children] == ["unreadable"]
    assert (seen.severities[Severity.OVER], sum(seen.severities.values())) == (1, 4)


def test_change_token_changes_with_every_event(ledger: Ledger) -> None:
    seen = {read_change_token(call_of(ledger))}

    def happened(what: str) -> None:
        stamp = read_change_token(call_of(ledger))
        assert stamp not in seen, what
        seen.add(stamp)

    ledger.population()
    happened("a population was opened")
    team = ledger.budget()
    happened("a budget was opened")
    run = ledger.run()
    happened("a run was registered")
    steps: Callable[..., int] = lambda **body: ledger.post(f"/v1/runs/{run}/steps", body, "trainer").status_code  # noqa: E731
    assert steps() == 200
    happened("a step was charged")
    assert steps(count=10**9, event=NOISY) == 403
    happened("a step was refused")
    assert steps(event=SAMPLED, mode="report") == 200
    happened("a step was reported")
    reserved = ledger.post(f"/v1/runs/{run}/reservations", {"plan": [{"event": SAMPLED, "count": 2}]}, "trainer")
    happened("a plan was set aside")
    assert ledger.post(f"/v1/reservations/{reserved.json()['id']}/void", {}, "trainer").status_code == 200
    happened("a plan was given back")
    for audit_event in ("pause", "resume", "complete"):
        assert ledger.post(f"/v1/runs/{run}/{audit_event}", {}, "trainer").status_code == 200
        happened(audit_event)
    lower = {"limit": {"epsilon": 0.9, "delta": 1e-5}, "reason": "Less is enough."}
    assert ledger.post(f"/v1/accounts/{team['id']}/limit", lower, If_Match="*").status_code == 200
    happened("a limit was lowered")
    before = read_change_token(call_of(ledger))
    assert ledger.get("/v1/runs").status_code == 200
    assert steps(dry_run=True) == 422
    assert read_change_token(call_of(ledger)) == before


def status(path: str, share: float, *, parent: str | None = None, epsilon: float | None = None) -> AccountStatus:
    """An account that has used a part of its limit of 2."""
    root = path.split("/", maxsplit=1)[0]
    kind = AccountKind.POPULATION if path == root else AccountKind.BUDGET
    spent = 2 * share if epsilon is None else epsilon
    facts = (path, kind, parent, root, path.rpartition("/")[2], path, path.count("/"), datetime.now(UTC), None)
    return AccountStatus(*facts, Limit(2.0, 1e-6), spent, spent, share=share)


def ending(account: AccountStatus, days: int) -> AccountStatus:
    """The same account, if it is empty in so many days."""
    return replace(account, now=NEW_YEAR, empty_at=NEW_YEAR + timedelta(days=days))


@pytest.mark.parametrize(
    ("account", "level"),
    [
        (status("p", 1.01), "over"),
        (replace(status("p", 0.0), quarantine="its balance is not proven"), "over"),
        (status("p", 0.99), "exhausted"),
        (replace(status("p", 0.1), epsilon_including_reserved=1.97, has_reserved=True), "exhausted"),
        (status("p", 0.8), "low"),
        (ending(status("p", 0.1), 7), "low"),
        (status("p", 0.5), "half"),
        (ending(status("p", 0.1), 30), "half"),
        (status("p", 0.49), "ok"),
        (ending(status("p", 0.1), 32), "ok"),
    ],
)
def test_severity_of_an_account(account: AccountStatus, level: str) -> None:
    assert account.severity == Severity(level)
    assert severity_label(account)


def test_tree_is_as_urgent_as_its_most_urgent_account() -> None:
    shown = [
        *(status("a", 0.7), status("a/x", 0.1, parent="a"), status("a/y", 0.2, parent="a")),
        *(status("b", 0.2), status("b/x", 0.3, parent="b"), status("b/x/deep", 0.9, parent="b/x")),
    ]
    unseen = [status("b/x/deep/er", 0.0, parent="b/x/deep"), status("a/z", 0.0, parent="a")]
    first, second = trees_of(shown, [*shown, *unseen])
    assert (first.status.path, second.status.path) == ("b", "a")
    assert [child.status.path for child in second.children] == ["a/y", "a/x"]
    assert second.hidden == 1
    assert (first.hidden, first.children[0].hidden, first.children[0].children[0].hidden) == (0, 0, 1)


def test_most_urgent_of_many_accounts_are_shown(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [status(f"p{number:03}", 0.1) for number in range(POPULATIONS + 20)]
    teams = [
        status(f"p{number:03}/t{team}", (number * 3 + team) / 1000, parent=f"p{number:03}")
        for number in range(POPULATIONS + 20)
        for team in range(3)
    ]
    monkeypatch.setattr(AccountStatusCache, "read", lambda *_: [*many, *teams])
    seen = read_overview(call_of(ledger), AccountStatusCache())
    assert (seen.populations, seen.budgets) == (POPULATIONS + 20, 3 * (POPULATIONS + 20))
    assert len(seen.trees) == POPULATIONS
    shown = [child for tree in seen.trees for child in tree.children]
    assert len(shown) == BUDGETS
    assert sum(tree.hidden for tree in seen.trees) == 3 * POPULATIONS - BUDGETS
    assert seen.trees[0].status.path == "p119"
    least = min(child.status.share for child in shown)
    hidden = {each.path for each in teams if each.population_id in {tree.status.id for tree in seen.trees}}
    hidden -= {child.status.path for child in shown}
    assert max(each.share for each in teams if each.path in hidden) <= least
    found = read_overview(call_of(ledger), AccountStatusCache(), wanted=" P007/t1 ")
    assert [tree.status.path for tree in found.trees] == ["p007"]


BEGAN = datetime(2026, 11, 1, tzinfo=UTC)


def grown(children: int, moments: int) -> SpendSeries:
    """Runs of so many children that are charged one unit at each order, one after the other."""
    size = orders(1).size
    times = [BEGAN + timedelta(minutes=at) for at in range(moments)]
    samples = [
        Sample(f"run-{at}", 0, 1, charged=True, reached=1, steps=1, at=times[at % moments]) for at in range(children)
    ]
    return spend_series(
        samples,
        {(each.run_id, 0): [("event", 1)] for each in samples},
        {each.run_id: each.run_id for each in samples},
        {"event": RdpCurve(np.ones(size, dtype=np.int64), 3)},
        times,
        whole=True,
    )


@pytest.mark.parametrize(("most", "counted"), [(None, 10), (10, 10), (4, 4)])
def test_children_add_up_or_the_largest_count(most: int | None, counted: int) -> None:
    curves, deltas = grown(10, 20).total(most)
    assert curves[:, 0].tolist() == curves[:, -1].tolist() == [float(min(at + 1, counted)) for at in range(20)]
    assert deltas.tolist() == [3.0 * min(at + 1, counted) for at in range(20)]


@pytest.mark.parametrize("most", [None, 4])
def test_scaled_series_ends_with_what_is_spent(most: int | None) -> None:
    end = RdpCurve(np.full(orders(1).size, 60, dtype=np.int64), 24)
    found = grown(10, 20).scaled(end, most)
    assert found.ends_with(end, most)
    assert found.through("run-0", 7)[-1] == 60 / (most or 10)


def test_thousand_children_take_little_memory() -> None:
    tracemalloc.start()
    try:
        found = grown(1000, 200)
        found.scaled(RdpCurve(np.full(orders(1).size, 5000, dtype=np.int64), 3000), None).total(None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50e6, "as curves at all orders they would take gigabytes"
