"""Reservations, steps, attempts and ends in any order, beside a model: balances agree to the byte."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import Refusal
from app.ledger.errors import InvalidInputError, LedgerError, ReservationClosedError, ReservationStateConflictError
from app.ledger.filter.limits import Limit
from app.ledger.governance.proposals import Proposal
from app.ledger.permissions import Role
from app.ledger.runs.decisions import DecisionOutcome
from app.ledger.runs.reservations import Reservation
from app.ledger.runs.run import RunAction
from app.ledger.step_events import StepEvent
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import decisions, runs
from app.service import maintenance, reservations
from app.service.auth import authentication
from app.service.charging.groups import CommandResult, NotReady
from app.service.charging.requests import StepCommand, StepResult
from app.service.charging.reservation_ends import close_revoked
from app.service.costing import CostNotReadyError
from app.service.governance import limit_changes, proposals
from app.service.keys.api_keys import create_key
from app.service.reservations import PrecedingReservation, ReservationRequest
from app.service.runs import lifecycle
from app.service.verification.verify import verify
from tests.conftest import Ledger
from tests.reliability.conftest import ROUNDS
from tests.service.reservation_model import EVENTS, Plan, Trained, cost, cost_to, fits, said
from tests.service.step_commands import CommandRunner, request

START = datetime(2100, 1, 1, tzinfo=UTC)
"""The service forfeits by the real clock what has lapsed meanwhile: that one must not overtake this one."""

items = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 6) | st.just(80)), min_size=1, max_size=3)
large = st.lists(st.tuples(st.sampled_from(EVENTS[:2]), st.sampled_from([10, 20, 40, 80])), min_size=1, max_size=2)
places = st.integers(0, 2)
executed = st.none() | st.integers(0, 14)
sides = st.booleans()

Way = tuple[int, dict[str, st.SearchStrategy[Any]]]


def way(weight: int, **strategies: st.SearchStrategy[Any]) -> Way:
    return weight, strategies


MODES = st.sampled_from(["authorize"] * 9 + ["report"])
PRECEDING = st.none() | st.tuples(st.integers(0, 2), st.integers(-1, 4))
LEASES = ("claim", "renew")
ENDS = st.sampled_from(["commit", "commit", "void", *LEASES])
EPSILONS = st.sampled_from([0.05, 0.2, 0.4, 0.6, 0.8])
WAYS: dict[str, Way] = {
    "steps": way(7, place=places, asked=items, share=st.integers(0, 2), mode=MODES, number=sides),
    "reserve": way(5, place=places, plan=items, lease=st.sampled_from([60, 600]), preceding=PRECEDING),
    "settle": way(4, place=places, how=ENDS, further=st.integers(-1, 4), ended=st.sampled_from([False] * 3 + [True])),
    "wait": way(2, seconds=st.sampled_from([1, 59, 60, 601]), sweep=sides),
    "limit": way(2, place=places, account=places, epsilon=EPSILONS),
    "open_attempt": way(1, place=places, back=st.none() | st.integers(0, 6), number=executed),
    "end": way(1, place=places, action=st.sampled_from(["complete", "abort"]), number=executed),
}
"""What may happen, how often, and with what; one rule, since hypothesis leaves out rules at random."""

VERIFIED_EVERY = 8
"""After so many changes the whole ledger is verified; the balances are compared after each of them."""

_numbers = itertools.count()


class Machine(RuleBasedStateMachine):
    """An organisation of its own for each example, in one ledger, where something of some ways happens."""

    ledger: Ledger
    ways: dict[str, Way]
    now = START
    changes = 0

    def founded(self) -> str:
        """Create an organisation with keys; return its id."""
        self.organisation, database = f"organisation{next(_numbers)}", self.ledger.database
        self.owner = authentication.create_organisation(database, self.organisation, START)
        for role in (Role.ADMIN, Role.PRIVACY_OFFICER):
            self.ledger.keys[self.organisation, str(role)] = create_key(database, self.organisation, role, START).key
        self.headers = self.ledger.headers("admin", self.organisation)
        self.terms: dict[str, Any] = {}
        return self.owner

    def sent(self, path: str, body: object = None, **more: str) -> httpx2.Response:
        reply: httpx2.Response = self.ledger.http.post(f"/v1/{path}", json=body, headers=self.headers | more)
        return reply

    def made(self, kind: str, **body: object) -> str:
        reply = self.sent(kind, self.terms | body)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def population(self) -> str:
        unit = {"privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
        return self.made("populations", name="people", limit=limit(1.0), **unit)

    @rule(data=st.data())
    def something(self, data: st.DataObject) -> None:
        what = data.draw(st.sampled_from([name for name, (weight, _) in self.ways.items() for _ in range(weight)]))
        self.now += timedelta(milliseconds=1)  # of two reservations one is older
        getattr(self, what)(**{name: data.draw(strategy, name) for name, strategy in self.ways[what][1].items()})
        self.has_changed()

    def has_changed(self) -> None:
        """Take notice of what has happened."""

    @invariant()
    def the_ledger_verifies(self) -> None:
        """Now and then, and at the end of each example: chains only grow, so what is wrong in them stays wrong."""
        self.changes += 1
        if self.changes % VERIFIED_EVERY == 0:
            self.verified()

    def teardown(self) -> None:
        if hasattr(self, "owner"):
            self.verified()

    def verified(self) -> None:
        assert verify(self.ledger.database, self.owner).problems == ()


def limit(epsilon: float) -> dict[str, float]:
    return {"epsilon": epsilon, "delta": 1e-5}


class Reserving(Machine):
    ways = WAYS
    limited = False

    @initialize(own=st.booleans(), planned=st.sampled_from([True, True, False]))
    def opened(self, *, own: bool, planned: bool) -> None:
        owner = self.founded()
        self.runners = [CommandRunner(self.ledger, owner), CommandRunner(self.ledger, owner)]
        self.now = START + timedelta(days=1)
        workload = {"event": {"type": "epsilon_delta", "epsilon": 0.001, "delta": 1e-9}, "count": 99}
        self.terms = {"planned": [workload] if planned else []}
        self.above = [self.population(), self.made("budgets", name="team", parent="people", limit=limit(0.8))]
        self.own = {"limit": limit(0.6)} if own else {}
        self.runs = [self.registered() for _ in range(2)]

    def registered(self) -> Trained:
        return Trained(self.made("runs", name="model", budget="people/team", **self.own))

    @property
    def runner(self) -> CommandRunner:
        """One process or the other, in turns."""
        self.runners.reverse()
        return self.runners[0]

    def has_changed(self) -> None:
        for run in self.runs:
            if run.further_reports():
                run.overdrawn = run.overdrawn or not fits(self.runners[0].path(run.id), Counter())

    def decided(self, runner: CommandRunner, command: StepCommand) -> CommandResult:
        outcome: CommandResult
        [outcome] = runner.once(command)
        while isinstance(outcome, NotReady):
            if isinstance(outcome, CostNotReadyError):
                outcome.compute(command.context.organisation_id)
            else:
                close_revoked(command.context, command.request.run_id, outcome.reservation_id)
            [outcome] = runner.once(command)
        return outcome

    def steps(self, place: int, asked: list[tuple[DpEvent, int]], mode: str, share: int, *, number: bool) -> None:
        run = self.runs[place % len(self.runs)]
        if share and run.active is not None and run.active.left:  # a part of what is planned
            asked = [(event, max(1, count // share)) for event, count in run.active.left.items()][-share:]
        total: Counter[DpEvent] = Counter()
        for event, count in asked:
            total[event] += count
        plan = run.active
        covered = mode == "authorize" and plan is not None and self.now < plan.until and total <= plan.left
        frozen = mode == "authorize" and (run.ended or run.overdrawn)
        usable = mode == "authorize" and not frozen and plan is not None and self.now < plan.until
        if usable and plan is not None and not plan.covers(asked[0][0]):  # it ends, and what it held is returned
            run.commit(plan, plan.used.total())
        bearable = fits(self.expected(run), total)
        before = self.runners[0].path(run.id)[:-1]
        runner = self.runner
        first = run.next_step if number else None
        command = runner.command(request(run.id, *asked, first=first, attempt=run.attempt, mode=mode))
        command.context = runner.call(self.now)
        command.ends_reservation = True
        outcome = self.decided(runner, command)
        if frozen:
            assert isinstance(outcome, LedgerError)
            return
        assert isinstance(outcome, StepResult)
        decision = outcome.decision
        assert decision.admitted == (covered or bearable or mode == "report")
        assert (decision.reservation_id is not None) == covered
        if covered:
            assert plan is not None
            plan.used += total
            assert self.runners[0].path(run.id)[:-1] == before
            assert self.unasked or all(self.bears_plans(account) for account in self.runners[0].path(run.id))
        elif decision.admitted:
            run.direct += total
            run.overdrawn = run.overdrawn or not bearable
            assert run.overdrawn or fits(self.runners[0].path(run.id), Counter())
        if decision.admitted:
            run.next_step += total.total()

    def expected(self, run: Trained) -> list[Account]:
        """A run's path as the model has it: a reservation that is to be ended first is still active in the ledger."""
        above = sum((each.settled for each in self.runs), Counter())
        held = sum((each.active.planned for each in self.runs if each.active is not None), Counter())
        used, unused = (run.active.used, run.active.unused) if run.active else (Counter(), Counter())
        path = self.runners[0].path(run.id)
        taken = [(above, held)] * (len(path) - 1) + [(run.settled + used, unused)]
        return [
            replace(account, spent=cost_to(account, path, spent), held=cost_to(account, path, kept))
            for account, (spent, kept) in zip(path, taken, strict=True)
        ]

    @property
    def unasked(self) -> bool:
        """Whether anything was charged that no limit let through: reports, and what a silent trainer forfeited."""
        plans = [plan for run in self.runs for plan in run.plans]
        return any(run.overdrawn for run in self.runs) or any(
            plan.reported or (plan.revoked and plan.status == "forfeited") for plan in plans
        )

    def bears_plans(self, account: Account, *more: Counter[DpEvent], but: Sequence[Plan] = ()) -> bool:
        """Whether what active reservations may still take fits, or nothing may; lapsed ones are forfeited wholly."""
        plans = [run.active for run in self.runs if run.active is not None and account.id in {run.id, *self.above}]
        own = account.id not in self.above
        going = [plan for plan in plans if self.now < plan.until and plan not in but]
        if not more and not any(plan.left for plan in going):
            return True
        taken = [plan.left + (Counter() if own else plan.used) for plan in going]
        taken += [plan.used for plan in but if plan in plans and not own]
        taken += [plan.unused if own else plan.planned for plan in plans if self.now >= plan.until]
        held = cost_to(account, [account], sum([*taken, *more], Counter()))
        return fits([replace(account, held=held)], Counter())

    def limit(self, place: int, account: int, epsilon: float) -> None:
        """Lower or raise a limit; what reservations may no longer take is read, and judged by itself."""
        run = self.runs[place % len(self.runs)]
        own = [run.id] if self.own else []
        subject = ([*self.above, *own])[account % (2 + len(own))]
        call = self.runner.call(self.now, Role.ADMIN)
        limit = Limit(epsilon, 1e-5)
        answer = self.attempted(lambda: limit_changes.change_limit(call, subject, limit, "as the office wishes", "*"))
        if isinstance(answer, Proposal):
            other = replace(call, principal=replace(call.principal, actor="key_of_another_person"))
            self.attempted(lambda: proposals.approve(other, answer.id, "as well"))
        for plan in (run.active for run in self.runs if run.active is not None):
            kept, _ = reservations.get_reservation(call, plan.id)
            revoked = Counter({item.event: item.revoked for item in kept.items if item.revoked})
            assert all(revoked[event] >= count for event, count in plan.revoked.items())
            plan.further, plan.revoked = revoked - plan.revoked, revoked
        if isinstance(answer, LedgerError):
            return
        self.limited = True
        [changed] = [each for each in self.runners[0].path(run.id) if each.id == subject]
        assert self.unasked or self.bears_plans(changed)
        self.kept_as_much_as_fits(changed)

    def kept_as_much_as_fits(self, account: Account) -> None:
        """The oldest reservation that gave way could not have kept one step more, whatever the newer ones give up."""
        reached = [run.active for run in self.runs if run.active is not None and account.id in {run.id, *self.above}]
        plans = sorted((plan for plan in reached if self.now < plan.until), key=lambda plan: plan.id)
        for place, plan in enumerate(plans):
            first = next((event for event in plan.planned if plan.further[event]), None)
            if first is not None:
                assert not self.bears_plans(account, plan.left, Counter({first: 1}), but=plans[place:])
                return

    def reserve(
        self, place: int, plan: list[tuple[DpEvent, int]], lease: int, preceding: tuple[int, int] | None
    ) -> None:
        run = self.runs[place % len(self.runs)]
        before, word = None, 0
        if preceding is not None and run.plans:  # mostly on the last reservation, maybe on one that ended long ago
            before = run.plans[-1] if preceding[0] else run.plans[0]
            word = max(0, before.used.total() + preceding[1] * before.unused.total() // 3)
        steps = tuple(StepEvent(*item) for item in plan)
        follows = None if before is None else PrecedingReservation(before.id, word)
        asked = ReservationRequest(run.id, steps, lease, run.attempt, follows)
        total: Counter[DpEvent] = Counter()
        for event, count in plan:
            total[event] += count
        active, can = run.active, not (run.ended or run.overdrawn)
        lapsed = active is not None and self.now >= active.until
        call = self.runner.call(self.now)
        answer = self.attempted(lambda: reservations.create_reservation(call, asked))
        expected = self.objection(before, word)
        other = active is not None and not lapsed and active is not before
        if not can or other or expected is not None:
            assert isinstance(answer, LedgerError)
            assert not can or other or type(answer) is expected
            return
        assert not isinstance(answer, LedgerError)
        if active is not None and active is not before:
            active.forfeit()
        if not isinstance(answer, Refusal):
            if active is not None and active is before:
                run.commit(before, word)
            run.plans.append(Plan(answer.reservation.id, run.id, total, lease, self.now + timedelta(seconds=lease)))

    def objection(self, before: Plan | None, word: int) -> type[LedgerError] | None:
        """Why a reservation cannot follow on another with this word."""
        if before is None:
            return None
        if before.status != "active":
            return None if before.said_before("commit", word) else ReservationClosedError
        if self.now >= before.until:
            return ReservationClosedError
        return None if before.used.total() <= word <= before.planned.total() else InvalidInputError

    def settle(self, place: int, how: str, further: int, *, ended: bool) -> None:
        plans = [plan for run in self.runs for plan in run.plans if (plan.status != "active") == ended]
        if not plans:
            return
        plan, call = plans[place % len(plans)], self.runner.call(self.now)
        number = max(0, plan.used.total() + (further * plan.unused.total() // 3 if further > 0 else further))
        lapsed = plan.status == "active" and self.now >= plan.until
        expected: type[LedgerError] | None = None
        if lapsed or (plan.status != "active" and not plan.said_before(how, number)):
            expected = ReservationClosedError
        elif (plan.status == "active" and how == "void" and plan.used) or (
            plan.status == "active" and how in LEASES and plan.revoked and not plan.left
        ):
            expected = ReservationStateConflictError
        elif plan.status == "active" and how == "commit" and not plan.used.total() <= number <= plan.planned.total():
            expected = InvalidInputError
        ways: dict[str, Callable[[], Reservation]] = {
            "commit": lambda: reservations.commit_reservation(call, plan.id, number),
            "void": lambda: reservations.void_reservation(call, plan.id),
            "claim": lambda: reservations.claim_reservation(call, plan.id),
            "renew": lambda: reservations.renew_reservation(call, plan.id),
        }
        answer = self.attempted(ways[how])
        assert (type(answer) if isinstance(answer, LedgerError) else None) is expected
        if lapsed and how not in LEASES:
            plan.forfeit()
        if expected is not None or plan.status != "active":
            return
        if how in LEASES:
            plan.until = self.now + timedelta(seconds=plan.lease)
        elif how == "void":
            plan.status = "voided"
        else:
            [run] = [run for run in self.runs if plan in run.plans]
            run.commit(plan, number)

    def attempted(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever is answered
        try:
            return ask()
        except LedgerError as error:
            return error

    def end(self, place: int, action: str, number: int | None) -> None:
        run = self.runs[place % len(self.runs)]
        if run.ended:
            return
        may = run.ended_with(self.now, number, needed=action == "complete")
        call = self.runner.call(self.now)
        answer = self.attempted(lambda: lifecycle.transition_run(call, run.id, RunAction(action), number))
        assert isinstance(answer, LedgerError) == (not may)
        if may:
            run.ended = True
            if len(self.runs) < 3:
                self.runs.append(self.registered())

    def open_attempt(self, place: int, back: int | None, number: int | None) -> None:
        run = self.runs[place % len(self.runs)]
        if run.ended or run.overdrawn:
            return
        start = None if back is None else max(0, run.next_step - back)
        may = run.ended_with(self.now, number, needed=False)
        call = self.runner.call(self.now)
        answer = self.attempted(lambda: lifecycle.start_attempt(call, run.id, start, number))
        assert isinstance(answer, LedgerError) == (not may)
        if may:
            run.attempt += 1
            run.next_step = run.next_step if start is None else start
            assert answer.run.attempt == run.attempt

    def wait(self, seconds: int, *, sweep: bool) -> None:
        self.now += timedelta(seconds=seconds)
        if sweep:
            lapsed = [run.active for run in self.runs if run.active is not None and self.now >= run.active.until]
            assert maintenance.expire_reservations(self.ledger.database, self.now) >= len(lapsed)
            for plan in lapsed:
                plan.forfeit()

    @invariant()
    def balances_agree_to_the_byte(self) -> None:
        runner = self.runners[0]
        above = sum((run.settled for run in self.runs), Counter())
        held = sum((run.active.planned for run in self.runs if run.active is not None), Counter())
        overdrawn = any(run.overdrawn for run in self.runs)
        for run in self.runs:
            active = run.active
            path = runner.path(run.id)
            *ancestors, own = path
            for each in ancestors:
                assert (each.spent, each.held) == (cost_to(each, path, above), cost_to(each, path, held))
            used, unused = (active.used, active.unused) if active else (Counter(), Counter())
            assert own.spent == cost_to(own, path, run.settled + used)
            assert own.held == cost_to(own, path, unused)
            assert overdrawn or self.limited or fits(path, Counter())

    @invariant()
    def what_was_reserved_is_committed_returned_or_forfeited(self) -> None:
        runner = self.runners[0]
        with self.ledger.database.read(ALL_TENANTS) as tx:
            for run in self.runs:
                kept = runs.get(tx, runner.organisation_id, run.id)
                assert (kept.next_step, kept.attempt) == (run.next_step, run.attempt)
                assert kept.reservation_id == (run.active and run.active.id)
                entries = decisions.at_positions(tx, runner.organisation_id, run.id, range(kept.decisions))
                for plan in run.plans:
                    assert said(entries, plan, DecisionOutcome.ADMITTED) == plan.used - plan.reported
                    assert said(entries, plan, DecisionOutcome.REPORTED) == plan.reported
                    assert said(entries, plan, DecisionOutcome.FORFEITED) == plan.forfeited
                    found, _ = reservations.get_reservation(runner.call(), plan.id)
                    assert (str(found.status), found.steps_executed) == (plan.status, plan.executed)
                    rest = (
                        plan.unused - plan.forfeited
                    )  # still held while the reservation is active, returned afterwards
                    assert cost(plan.planned) == cost(plan.used + plan.forfeited + rest)


class Lowering(Reserving):
    """Reservations that fill their budgets, and limits that change all the time."""

    ways = WAYS | {
        "reserve": (8, WAYS["reserve"][1] | {"plan": large, "lease": st.just(600), "preceding": st.none()}),
        "limit": (8, WAYS["limit"][1]),
        "settle": (2, WAYS["settle"][1]),
    }


def run_machine(ledger: Ledger, machine: type[Machine]) -> None:
    Machine.ledger = ledger
    few, many = {"max_examples": 1, "stateful_step_count": 25}, {"max_examples": 3 * ROUNDS, "stateful_step_count": 40}
    size: dict[str, Any] = few if ROUNDS == 1 else many
    size |= {"deadline": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(machine, settings=settings(**size))


@pytest.mark.both_databases
def test_sequence_keeps_balances_and_limits(ledger: Ledger) -> None:
    run_machine(ledger, Reserving)


def test_sequence_with_changing_limits_keeps_balances_and_limits(ledger: Ledger) -> None:
    run_machine(ledger, Lowering)
