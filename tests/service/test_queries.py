"""What pages read: how accounts stand, in which order, when that is new, and what their children spent."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx2
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
from app.service.queries.overview import BUDGETS, POPULATIONS, read_change_token, read_overview
from app.service.queries.spend_series import SpendSeries, spend_series
from tests.api.trainer import Trainer
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
    trainer = Trainer(ledger, ledger.run())
    assert trainer.steps(count=100).status_code == 200
    reserved = trainer.reserved((SAMPLED, 50))
    found = statuses_of(ledger)
    for answer in (each for kind in ("populations", "budgets") for each in ledger.get(f"/v1/{kind}").json()["items"]):
        status = found[answer["path"]]
        assert (status.epsilon, status.limit) == (answer["epsilon"], Limit(**answer["limit"]))
        assert status.epsilon_including_reserved > status.epsilon
        assert status.has_reserved
        assert status.remaining == Limit(**answer["limit"]).epsilon - status.epsilon_including_reserved
    assert trainer.end(reserved, "void").status_code == 200
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

    def changes(*replies: httpx2.Response) -> None:
        """Each answer of a change, in turn; the last status is that of the last one."""
        token = read_change_token(call_of(ledger))
        assert token not in seen, [reply.text for reply in replies]
        seen.add(token)

    ledger.population()
    changes()
    team = ledger.budget()
    changes()
    trainer = Trainer(ledger, ledger.run())
    changes()
    changes(trainer.steps())
    changes(trainer.steps(count=10**9, event=NOISY))
    changes(trainer.steps(event=SAMPLED, mode="report"))
    reserved = trainer.reserved((SAMPLED, 2))
    changes()
    changes(trainer.end(reserved, "void"))
    for action in ("pause", "resume", "complete"):
        changes(trainer.act(action))
    lower = {"limit": {"epsilon": 0.9, "delta": 1e-5}, "reason": "Less is enough."}
    changes(ledger.post(f"/v1/accounts/{team['id']}/limit", lower, If_Match="*"))
    assert ledger.get("/v1/runs").status_code == 200
    assert trainer.steps(dry_run=True).status_code >= 400
    assert read_change_token(call_of(ledger)) in seen


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


def test_most_urgent_of_many_accounts_are_shown(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{number:03}" for number in range(POPULATIONS + 20)]
    many = [status(name, 0.1) for name in names]
    teams = [
        status(f"{name}/t{team}", (place * 3 + team) / 1000, parent=name)
        for place, name in enumerate(names)
        for team in range(3)
    ]
    monkeypatch.setattr(AccountStatusCache, "read", lambda *_: [*many, *teams])
    seen = read_overview(call_of(ledger), AccountStatusCache())
    assert (seen.populations, seen.budgets, len(seen.trees)) == (len(many), len(teams), POPULATIONS)
    shown = [child.status for tree in seen.trees for child in tree.children]
    assert (len(shown), sum(tree.hidden for tree in seen.trees)) == (BUDGETS, 3 * POPULATIONS - BUDGETS)
    assert seen.trees[0].status.path == "p119"
    in_trees = {
        each.path: each.share for each in teams if each.population_id in {tree.status.id for tree in seen.trees}
    }
    hidden = [share for path, share in in_trees.items() if path not in {each.path for each in shown}]
    assert max(hidden) <= min(each.share for each in shown)
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
