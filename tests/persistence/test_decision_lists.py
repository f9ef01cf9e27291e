"""Pages of decisions: each list has all of its decisions once, newest first, whichever way they are searched."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, insert, select, update

from app.ledger.pages import PageRequest
from app.ledger.runs.decisions import Decision, DecisionFilter, DecisionOutcome
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import decision_lists, decisions
from app.persistence.tables import decision_ranges, runs
from app.persistence.tables import decisions as decision_rows
from app.service.verification.verify import verify
from tests.api.trainer import hired
from tests.clocks import stand_at
from tests.conftest import Ledger, open_ledger
from tests.soak import thinned

pytestmark = pytest.mark.both_databases

START, FOREVER = datetime(2026, 11, 23, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
ACTORS = ("key_ada", "key_bob", "key_eve")
OUTCOMES = (DecisionOutcome.ADMITTED,) * 4 + (DecisionOutcome.REFUSED, DecisionOutcome.REPORTED)


class Decided(NamedTuple):
    """A decision, in the order of lists."""

    at: datetime
    run_id: str
    position: int
    actor: str
    outcome: DecisionOutcome


class Filled(NamedTuple):
    """A ledger of many decisions, and the accounts of each run."""

    ledger: Ledger
    organisation_id: str
    decided: list[Decided]
    paths: dict[str, set[str]]

    def listed(self, wanted: DecisionFilter) -> list[Decided]:
        """The decisions of a list, by its definition."""

        def is_wanted(each: Decided) -> bool:
            return (
                wanted.run_id in {None, each.run_id}
                and (wanted.within is None or wanted.within in self.paths[each.run_id])
                and wanted.outcome in {None, each.outcome}
                and wanted.actor in {None, each.actor}
                and (wanted.since or each.at) <= each.at < (wanted.until or FOREVER)
            )

        return sorted(filter(is_wanted, self.decided), reverse=True)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Filled]:
    with open_ledger(tmp_path_factory.mktemp("ledger"), module_database_url) as ledger:
        population = str(ledger.population()["id"])
        budgets = {f"mimic/{name}": str(ledger.budget(name)["id"]) for name in ("icu", "ward", "nobody")}
        paths = {}
        for path in ["mimic/icu"] * 4 + ["mimic/ward"] * 2:
            run = ledger.run(path)
            paths[run] = {run, budgets[path], population}
            assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
        with ledger.database.write(ALL_TENANTS) as tx:
            organisation = tx.execute(select(runs.c.organisation_id).limit(1)).scalar_one()
            decided = [each for number, run in enumerate(paths) for each in _decide(tx, run, number)]
        yield Filled(ledger, organisation, decided, paths | {each: {each} for each in budgets.values()})


def _decide(tx: Connection, run_id: str, number: int) -> list[Decided]:
    """Fill a run with decisions at random times, many of them equal, and of actors that alternate."""
    random = Random(number)  # noqa: S311 - repeatable, not secret
    [template] = tx.execute(select(decision_rows).where(decision_rows.c.run_id == run_id)).mappings()
    tx.execute(decision_ranges.delete().where(decision_ranges.c.run_id == run_id))
    tx.execute(decision_rows.delete().where(decision_rows.c.run_id == run_id))
    at, actor, decided = START + timedelta(seconds=random.randrange(40)), "", []
    ranges, rows = [], []
    key = {name: template[name] for name in ("organisation_id", "run_id")}
    for position in range(40 if number else 1):
        later, outcome = random.choice([0, 0, 1, 5, 5, -4]), random.choice(OUTCOMES)  # a clock may be set back
        at += timedelta(seconds=later)
        before, actor = actor, actor if actor and random.random() < 0.8 else random.choice(ACTORS)
        if actor != before or later < 0:
            ranges.append(key | {"first_position": position, "actor": actor})
        decided.append(Decided(at, run_id, position, actor, outcome))
        refused = outcome is DecisionOutcome.REFUSED
        said = {"refusal_details": "{}", "steps_remaining": None} if refused else {"steps_remaining": 5}
        place = {"position": position, "first_step": position, "created_at": at, "actor": actor}
        rows.append(dict(template) | {"refusal_details": None} | place | {"outcome": str(outcome)} | said)
    tx.execute(insert(decision_rows), rows)
    tx.execute(insert(decision_ranges), ranges)
    tx.execute(update(runs).where(runs.c.account_id == run_id).values(decision_count=len(rows)))
    return decided


@pytest.mark.parametrize("recent", [1, 5_000])
@pytest.mark.parametrize("seed", thinned(range(8), 8))
def test_pages_of_a_list_have_all_of_its_decisions_in_order(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, seed: int, recent: int
) -> None:
    monkeypatch.setattr(decision_lists, "RECENT", recent)
    random = Random(recent + seed)  # noqa: S311 - as above
    lists = [DecisionFilter(), *(_filter(filled, random) for _ in range(6))]
    with filled.ledger.database.read(filled.organisation_id) as tx:
        for wanted in lists:
            due = filled.listed(wanted)
            limit = max(random.randint(3, 60), len(due) // 6)
            after = None
            for start in range(0, len(due) + 1, limit):
                page = decisions.page(tx, filled.organisation_id, wanted, PageRequest(limit, after))
                assert [_decided(each.decision) for each in page.items] == due[start : start + limit], wanted
                after = page.next
                assert (after is None) == (start + limit >= len(due)), wanted
                if after is None:
                    break
    assert max(len(filled.listed(wanted)) for wanted in lists) > 100


def _decided(decision: Decision) -> Decided:
    return Decided(decision.created_at, decision.run_id, decision.position, decision.actor.id, decision.outcome)


def _filter(filled: Filled, random: Random) -> DecisionFilter:
    """Build a filter, of which each member is set in three of ten cases."""
    start, end = (START + timedelta(seconds=random.randint(-5, 150)) for _ in range(2))
    choices: dict[str, list[Any]] = {
        "run_id": [run for run, path in filled.paths.items() if len(path) > 1],
        "within": sorted({each for path in filled.paths.values() for each in path}),
        "outcome": list(DecisionOutcome),
        "actor": [*ACTORS, "key_nobody"],
        "since": [start],
        "until": [end],
    }
    return DecisionFilter(**{name: random.choice(values) for name, values in choices.items() if random.random() < 0.3})


TAKEN = [("trainer", 0), ("trainer", 1), ("admin", 1), ("trainer", 1), ("trainer", 0), ("trainer", -60), ("trainer", 1)]
"""Who takes each step, and how many seconds after the one before."""


def test_range_of_decisions_begins_when_the_actor_changes_or_a_clock_is_set_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [datetime.now(UTC) + timedelta(days=1)]
    stand_at(monkeypatch, lambda: clock[0])
    run = hired(ledger).run
    for role, later in TAKEN:
        clock[0] += timedelta(seconds=later)
        assert ledger.post(f"/v1/runs/{run}/steps", {}, role).status_code == 200
    trainer, admin = (ledger.keys["hospital", role].partition(".")[0] for role in ("trainer", "admin"))
    with ledger.database.read(ALL_TENANTS) as tx:
        found = select(decision_ranges.c.first_position, decision_ranges.c.actor)
        rows = [tuple(row) for row in tx.execute(found.order_by(decision_ranges.c.first_position))]
    assert rows == [(0, trainer), (2, admin), (3, trainer), (5, trainer)]
    assert [each["position"] for each in _items(ledger, "")] == [4, 3, 2, 1, 0, 6, 5]
    assert [each["position"] for each in _items(ledger, f"?actor={admin}")] == [2]
    assert [each["position"] for each in _items(ledger, f"?run={run}&actor={trainer}")] == [4, 3, 1, 0, 6, 5]
    assert verify(ledger.database).sound


def _items(ledger: Ledger, query: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = ledger.get(f"/v1/decisions{query}").json()["items"]
    return items
