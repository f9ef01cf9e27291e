"""Steps that are charged in place are decided as the rule decides them, whatever comes between."""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import select

from app.accounting.curves import RdpCurve
from app.accounting.events import event_to_dict
from app.ledger.permissions import Role
from app.ledger.plan.plan_filter import Coordinates
from app.persistence.database import ALL_TENANTS
from app.persistence.tables import decisions
from app.service.auth.authentication import Principal
from app.service.auth.request_context import RequestContext
from app.service.charging import groups
from app.service.charging.counted_steps import CountedSteps
from app.service.charging.groups import commit_counted, decide_command
from app.service.charging.ledger_state import LedgerState
from app.service.charging.requests import Mode, OnExceed, StepCommand, StepRequest, StepResult
from tests.conftest import Ledger
from tests.databases import new_database
from tests.ledgers import open_ledger
from tests.reliability.conftest import LONG, ROUNDS
from tests.service import step_commands
from tests.service.step_commands import HUGE, LOUD, QUIET, CommandRunner, sound

GROUPS = 60 if LONG else 30
Asked = tuple[int, dict[str, Any], str]
"""The number of a run, the fields of its request, and the author."""


class World:
    """A ledger with runs under two budgets: one is small, one run declares what it will do, and two reserve."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.runner = ledger, CommandRunner(ledger)
        ledger.population()
        event = event_to_dict(LOUD)
        planned = [{"event": event, "count": 150}, {"event": event_to_dict(QUIET), "count": 30}]
        ledger.budget(planned=planned)
        ledger.budget("lab", limit={"epsilon": 0.6, "delta": 1e-5})
        self.runs = [
            ledger.run("mimic/icu-team", name="a", event=event),
            ledger.run("mimic/icu-team", name="b"),
            ledger.run("mimic/lab", name="c", event=event),
            ledger.run("mimic/lab", name="d", event=event, expected_steps=30),
            ledger.run("mimic/icu-team", name="e", event=event),
            ledger.run("mimic/lab", name="f", event=event),
        ]

    def hold(self, run: int, count: int) -> None:
        """Make a reservation, unless the run has one."""
        plan = [{"event": event_to_dict(event), "count": each} for event, each in ((LOUD, count), (QUIET, 4))]
        reply = self.ledger.post(
            f"/v1/runs/{self.runs[run]}/reservations", {"events": plan, "lease_seconds": 900}, "trainer"
        )
        assert reply.status_code in {201, 403, 409}

    def commands(self, asked: Sequence[Asked], now: datetime) -> list[StepCommand]:
        """Build a group, which lacks no cost."""
        made = []
        for run, fields, actor in asked:
            caller = Principal(self.runner.organisation_id, actor, Role.TRAINER)
            command = StepCommand(
                RequestContext(self.ledger.database, caller, now), StepRequest(self.runs[run], **fields)
            )
            self.runner._prepare(command)
            made.append(command)
        return made

    def told(self, outcomes: Sequence[object]) -> list[object]:
        """What trainers are told, without what differs between two ledgers."""
        found: list[object] = []
        for outcome in outcomes:
            if isinstance(outcome, StepResult):
                of = outcome.decision
                found.append(
                    of._replace(
                        run_id=str(self.runs.index(of.run_id)),
                        binding_account_id="",
                        request_fingerprint="",
                        reservation_id=of.reservation_id and "held",
                        population_version=0 if of.reservation_id else of.population_version,
                        refusal_details=None,
                        entry_hash=b"",
                        steps=() if outcome.replayed else of.steps,
                    )
                )
            else:
                found.append(type(outcome))
        return found

    def population_versions(self) -> list[int]:
        """Of the decisions of all runs that charged the population."""
        charging = (decisions.c.outcome.in_(("admitted", "reported")), decisions.c.reservation_id.is_(None))
        with self.ledger.database.read(ALL_TENANTS) as tx:
            return list(tx.execute(select(decisions.c.population_version).where(*charging)).scalars())

    def balances(self) -> list[object]:
        """What is spent on each account, and where each run stands."""
        spent = [
            (account.path, account.version, *_nameless(account.spent), *_nameless(account.held))
            for run in self.runs
            for account in self.runner.path(run)
        ]
        shown = [self.ledger.get(f"/v1/runs/{run}").json() for run in self.runs]
        return [spent, [(each["status"], each["next_step"], each["deviations"]) for each in shown]]


def _nameless(curve: RdpCurve) -> tuple[RdpCurve, list[Coordinates]]:
    """A curve and its usage of plans, without the ids of their accounts."""
    return curve.using({}), list(curve.used.values())


def random_group(dice: random.Random, next_steps: list[int], keys: list[str]) -> list[Asked]:
    """Mostly the next steps of some runs; now and then what only the rule can decide."""
    group: list[Asked] = []
    for _ in range(dice.choice((1, 1, 2, 5))):
        run = dice.choice((0, 1, 2, 3, 4, 4, 5))
        usual = dice.random() < 0.9
        event = None if run != 1 and usual else dice.choice((LOUD, QUIET))
        items: tuple[tuple[Any, int], ...] = ((event, dice.choice((1, 1, 1, 1, 3))),)
        if dice.random() < 0.05:
            items = dice.choice((((LOUD, 1), (QUIET, 2)), ((HUGE, 1),), ((QUIET, 40),)))
        first = next_steps[run] + sum(sum(count for _, count in each[1]["items"]) for each in group if each[0] == run)
        key = None
        if dice.random() < 0.3:
            key = f"k{len(keys)}" if dice.random() < 0.8 or not keys else dice.choice(keys)
            keys.append(key)
        fields = {
            "items": items,
            "first_step": dice.choice((None, *[first] * 9, max(0, first - 1), first + 1)),
            "idempotency_key": key,
            "attempt": 2 if dice.random() < 0.03 else 1,
            "mode": Mode.REPORT if dice.random() < 0.03 else Mode.AUTHORIZE,
            "on_exceed": OnExceed.TRUNCATE if dice.random() < 0.1 else OnExceed.REFUSE,
        }
        group.append((run, fields, "key_other" if dice.random() < 0.05 else "key_test"))
    return group


def decided(world: World, asked: Sequence[Asked], now: datetime) -> tuple[list[object], list[int], int]:
    """Decide a group.

    Returns:
        What is told, the places in the order of the decisions, and the number of the last that the rule decided.
    """
    commands, ruled = world.commands(asked, now), list[int]()
    at_once: dict[int, object] = {}

    def count(*given: Any) -> Any:  # noqa: ANN401 - as `commit_counted`
        at_once.update(found := commit_counted(*given))
        return found

    def decide(*given: Any) -> Any:  # noqa: ANN401 - as `decide_command`
        ruled.append(next(place for place, command in enumerate(commands) if command is given[-1]))
        return decide_command(*given)

    with patch.object(step_commands, "commit_counted", count), patch.object(groups, "decide_command", decide):
        outcomes = world.runner.once(*commands)
    counted = [place for place in range(len(asked)) if place not in at_once and place not in ruled]
    return world.told(outcomes), [*at_once, *counted, *dict.fromkeys(ruled)], len(set(ruled))


def decided_by_rule(world: World, asked: Sequence[Asked], now: datetime) -> list[object]:
    with patch.object(CountedSteps, "charge_all", lambda *_: {}):
        return world.told(world.runner.once(*world.commands(asked, now)))


@pytest.fixture
def worlds(tmp_path: Path, database_kind: str) -> Iterator[tuple[World, World]]:
    with ExitStack() as stack:
        made = []
        for name in ("counted", "ruled"):
            (tmp_path / name).mkdir()
            url = stack.enter_context(new_database(database_kind, tmp_path / name))
            made.append(World(stack.enter_context(open_ledger(tmp_path / name, url))))
        yield made[0], made[1]


@pytest.mark.both_databases
@pytest.mark.parametrize("seed", range(max(1, ROUNDS // 5)))
def test_random_groups_are_decided_as_by_the_rule(worlds: tuple[World, World], seed: int) -> None:
    dice, (counting, ruling) = random.Random(seed), worlds  # noqa: S311 - to do the same again
    now, keys, all_counted = datetime.now(UTC), list[str](), 0
    next_steps = [0] * 6
    for world in worlds:
        world.hold(4, 40)
    for number in range(GROUPS):
        now += timedelta(seconds=-2 if dice.random() < 0.05 else 1)
        asked = random_group(dice, next_steps, keys)
        told, order, ruled = decided(counting, asked, now)
        same = decided_by_rule(ruling, [asked[place] for place in order], now)
        assert [told[place] for place in order] == same, (number, asked)
        all_counted += len(order) - ruled
        if dice.random() < 0.05:  # another process
            counting.runner.memory = LedgerState()
        if number % 10 == 0 or dice.random() < 0.05:
            run, count = dice.choice((4, 5)), dice.choice((3, 12, 40))
            for world in worlds:
                world.hold(run, count)
        for action in ("resume", "pause") if dice.random() < 0.1 else ():
            run = dice.randrange(4)
            for world in worlds:
                world.ledger.post(f"/v1/runs/{world.runs[run]}/{action}", None, "trainer")
        shown = [counting.ledger.get(f"/v1/runs/{run}").json() for run in counting.runs]
        next_steps = [each["next_step"] for each in shown]
    assert counting.balances() == ruling.balances()
    assert all_counted > GROUPS / 10
    for world in worlds:
        versions = world.population_versions()
        assert len(set(versions)) == len(versions)
    assert all(sound(world.ledger) for world in worlds)
