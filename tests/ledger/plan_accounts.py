"""Small games of the plan filter on real accounts: `admit`, `hold`, `settle_hold`, other limits.

In every state that the adversary may reach, what the accounts admit is compared with the rule of `plan_rules`, which
has their integers. So the value of a game is that of both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from app.accounting.curves import orders
from app.accounting.events import DpEvent, EpsilonDelta, NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.accounts import Account, AccountKind, zero_curve
from app.ledger.admission import Admission, admit, hold
from app.ledger.composition import counting_plans, exposed, recompose
from app.ledger.filters import FilterWeights, Limit, PlanBound, filter_weights
from app.ledger.limit_changes import with_limit
from app.ledger.parallel_exposure import without
from app.ledger.step_events import PricedStep, StepEvent
from app.ledger.tuning import DECLARED_SHARE, Tuning, planned_weights, weights_under

from .plan_draws import ORDERS, Game
from .plan_games import SILENT, Board, solve
from .plan_rules import Cost, Part, Rule, State, Terms

WHOLE = "bud_whole"
ROUNDING = 1e-9
AMPLE = Limit(1000.0, 0.49)
"""The limit of parts, which does not matter."""


class Place(NamedTuple):
    """Where a game is: what was charged and is held, and the filter in force."""

    state: State
    limit: Limit
    weights: FilterWeights | None


@dataclass
class RealGame:
    """A game on accounts: one that has a plan, with runs of its own, or with parts that have runs.

    Args:
        game: whose plan, orders, reserve, limits and shape it has.
        chosen: whether the weights are those that the ledger chooses for the plan; else they are the game's.
        relation: of the accounts; under `replace_one` twice as many parts count.
        changes: number of times that the limit may change.
    """

    game: Game
    chosen: bool = False
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
    changes: int = 0
    states: int = 0
    decisions: int = 0
    differences: list[str] = field(default_factory=list)
    _accounts: dict[Place, Mapping[str, Account]] = field(default_factory=dict)
    _rules: dict[tuple[Limit, FilterWeights | None], Rule] = field(default_factory=dict)
    _following: dict[tuple[Limit, FilterWeights | None, bool, Limit], FilterWeights | None] = field(
        default_factory=dict
    )

    @cached_property
    def events(self) -> list[DpEvent]:
        """The mechanisms."""
        return [EpsilonDelta(kind.epsilon, kind.own) for kind in self.game.kinds if kind.epsilon is not None]

    @cached_property
    def limit(self) -> Limit:
        """The named limit."""
        return Limit(self.game.epsilon, self.game.delta() * (1 + 1e-12))

    def value(self) -> float:
        """Compute the largest divergence that an adversary reaches."""
        begin = self._start()
        nothing = (0,) * len(self.events)
        state = State((Part(nothing, nothing),) * self.game.shape.parts, self.game.shape.holds, 0, self.changes)
        start = self._reached(state, begin)
        return solve(Board(self.game.kinds), self.game.epsilon, start, self.moves)

    def _start(self) -> dict[str, Account]:
        game, items = (
            self.game,
            tuple(StepEvent(self.events[kind], len(list(same))) for kind, same in groupby(self.game.plan)),
        )
        if self.chosen:
            weights = planned_weights(self.limit, items, self.relation, 1, DECLARED_SHARE)
        else:
            epsilons = (self.limit.epsilon,) * len({-(-game.steps * each**2 // 256) for each in range(1, 17)})
            plan = PlanBound(game.plan_delta / self.limit.delta, game.plan_delta, game.steps, epsilons)
            grid = orders(1)
            indices = tuple(int(np.argmin(np.abs(grid - order))) for order in ORDERS)
            weights = FilterWeights(indices, game.order_deltas, game.reserve, plan)
        each = 2 if self.relation is NeighboringRelation.REPLACE_ONE else 1
        parallel = game.shape.counting < game.shape.parts
        whole = self._open(WHOLE, None, self.limit, weights)
        whole = replace(whole, planned=items, partitions_per_unit=game.shape.counting // each if parallel else None)
        whole = counting_plans(whole, [])
        found = {WHOLE: whole}
        for place in range(game.shape.parts):
            above = [whole]
            if parallel:
                ample = FilterWeights((0,), (0.1,), 0.3)
                above.append(counting_plans(self._open(f"bud_{place}", whole, AMPLE, ample), above))
            for account in (*above[1:], counting_plans(self._open(f"run_{place}", above[-1], None, None), above)):
                found[account.id] = account
        return found

    def _open(self, name: str, parent: Account | None, limit: Limit | None, weights: FilterWeights | None) -> Account:
        return Account(
            id=name,
            kind=AccountKind.RUN if limit is None else AccountKind.BUDGET,
            parent_id=None if parent is None else parent.id,
            population_id="pop_p",
            name=name,
            path=name,
            depth=1 if parent is None else parent.depth + 1,
            relation=self.relation,
            limit=limit,
            planned=(),
            weights=weights,
            spent=zero_curve(),
            held=zero_curve(),
        )

    def _reached(self, state: State, accounts: Mapping[str, Account]) -> Place:
        whole = accounts[WHOLE]
        assert whole.limit is not None, "it has one"
        place = Place(state, whole.limit, whole.weights)
        if place not in self._accounts:
            self.states += 1
            self._accounts[place] = accounts
        elif any(not _alike(account, accounts[name]) for name, account in self._accounts[place].items()):
            self.differences.append(f"{state}: the order of charges matters")
        return place

    def moves(self, place: Place) -> Iterator[tuple[int, Place]]:
        """List all that the accounts admit."""
        state, accounts = place.state, self._accounts[place]
        taken = sum(sum(part.charged) + sum(part.held) for part in state.parts)
        for number, part in enumerate(state.parts):
            axis = number < self.game.shape.counting
            for kind, event in enumerate(self.events):
                if taken < self.game.shape.rounds:
                    steps = [accounts[WHOLE].price(StepEvent(event, 1))]
                    charged = _with(state, number, part._replace(charged=_more(part.charged, kind)))
                    after = self._admitted(place, number, steps)
                    self._compare(charged, kind, place, after)
                    if after is not None:
                        yield kind if axis else SILENT, self._reached(charged, after)
                    if state.holds:
                        held = _with(state, number, part._replace(held=_more(part.held, kind)))
                        held = held._replace(holds=state.holds - 1)
                        reserved = self._held(place, number, steps)
                        self._compare(held, kind, place, reserved)
                        if reserved is not None:
                            yield SILENT, self._reached(held, reserved)
                if part.held[kind]:
                    left = part._replace(held=_more(part.held, kind, -1))
                    used = _with(state, number, left._replace(charged=_more(part.charged, kind)))
                    ended = self._reached(used, self._settled(place, number, event, 1))
                    yield kind if axis else SILENT, ended
                    yield SILENT, ended  # it lapsed, and is forfeited
                    yield SILENT, self._reached(_with(state, number, left), self._settled(place, number, event, 0))
        if state.changes:
            yield from self._other_limits(place)

    def _other_limits(self, place: Place) -> Iterator[tuple[int, Place]]:
        for epsilon, delta in ((1.0, 1.0), *self.game.others):
            limit = Limit(self.limit.epsilon * epsilon, self.limit.delta * delta)
            if limit != place.limit:
                changed = place.state._replace(changes=place.state.changes - 1)
                yield SILENT, self._reached(changed, self._limited(place, limit))

    def _path(self, place: Place, number: int) -> tuple[Account, ...]:
        accounts = self._accounts[place]
        names = [name for name in (WHOLE, f"bud_{number}", f"run_{number}") if name in accounts]
        return exposed([accounts[name] for name in names], self._parts(accounts))

    def _parts(self, accounts: Mapping[str, Account]) -> list[Account]:
        return [each for each in accounts.values() if each.id != WHOLE and each.kind is AccountKind.BUDGET]

    def _admitted(self, place: Place, number: int, steps: list[PricedStep]) -> dict[str, Account] | None:
        outcome = admit(self._path(place, number), steps)
        self.decisions += 1
        return self._after(place, outcome.accounts) if isinstance(outcome, Admission) else None

    def _held(self, place: Place, number: int, steps: list[PricedStep]) -> dict[str, Account] | None:
        outcome = hold(self._path(place, number), steps)
        self.decisions += 1
        return self._after(place, outcome) if isinstance(outcome, tuple) else None

    def _after(self, place: Place, changed: tuple[Account, ...]) -> dict[str, Account]:
        return {**self._accounts[place], **{each.id: replace(each, exposure=None, version=0) for each in changed}}

    def _settled(self, place: Place, number: int, event: DpEvent, count: int) -> dict[str, Account]:
        """End a reservation of one step, of which so many are charged, as `charging.close` does."""
        path = self._path(place, number)
        whole = path[0]
        reserved = event_curve(event, self.relation, 1)
        if whole.plan is not None:
            reserved = reserved.using({WHOLE: whole.plan.workload.cost(event)})
        spent = reserved if count else zero_curve()
        below = tuple(each.settle_hold(spent, without(each.held, reserved)) for each in path[1:])
        after = self._after(place, below)
        if whole.partitions_per_unit is None:
            return self._after(place, (whole.settle_hold(spent, without(whole.held, reserved)), *below))
        return self._after(place, (recompose(whole, self._parts(after)), *below))

    def _limited(self, place: Place, limit: Limit) -> dict[str, Account]:
        whole = self._accounts[place][WHOLE]
        key = (place.limit, place.weights, whole.is_untouched, limit)
        if key not in self._following:
            self._following[key] = weights_under(Tuning.of(whole), limit)
        changed = replace(with_limit(whole, limit, self._following[key]), limit_revision=0)
        if changed.weights is not None and changed.weights.plan is not None:
            bound = changed.weights.plan
            if self.game.delta_of_steps(bound.steps, limit.epsilon) > bound.delta * (1 + ROUNDING):
                self.differences.append(f"{limit} does not allow {bound.steps} steps at {bound.delta}")
        return self._after(place, (changed,))

    def _compare(self, wanted: State, kind: int, place: Place, after: Mapping[str, Account] | None) -> None:
        """Compare what the accounts did with the rule, under the weights with which they should do it."""
        whole, event = self._accounts[place][WHOLE], self.events[kind]
        untouched = not any(any(part.charged) or any(part.held) for part in place.state.parts)
        is_held = wanted.holds < place.state.holds
        leaves = whole.plan is None or (not is_held and whole.plan.workload.cost(event)[0] > 0)
        if place.weights is None or (untouched and leaves):
            weights = filter_weights(place.limit, event_curve(event, self.relation, 1), 1)
            whole = replace(whole, weights=weights)
        if self._rule(whole).admits(wanted, kind) != (after is not None):
            self.differences.append(f"{wanted}, kind {kind}, {whole.limit}: {after is not None}")
        if after is not None and after[WHOLE].weights != whole.weights:
            self.differences.append(f"{wanted}, kind {kind}, {whole.limit}: other weights")

    def _rule(self, whole: Account) -> Rule:
        assert whole.limit is not None, "it has one"
        key = (whole.limit, whole.weights)
        if key not in self._rules:
            bounds, plan, shape = whole.bounds(), whole.plan, self.game.shape
            costs = []
            for event in self.events:
                curve = event_curve(event, self.relation, 1)
                of_plan = (0,) if plan is None else plan.workload.cost(event)
                costs.append(Cost(of_plan, tuple(int(each) for each in curve.values[bounds.places]), curve.delta))
            plans = () if plan is None else (plan.capacity,)
            terms = Terms(plans, tuple(int(each) for each in bounds.bounds), bounds.room)
            self._rules[key] = Rule(tuple(costs), (terms,), shape.parts, shape.counting, shape.rounds, shape.holds)
        return self._rules[key]


def _alike(one: Account, other: Account) -> bool:
    return (one.spent, one.held, one.weights) == (other.spent, other.held, other.weights)


def _with(state: State, place: int, part: Part) -> State:
    return state._replace(parts=(*state.parts[:place], part, *state.parts[place + 1 :]))


def _more(counts: tuple[int, ...], kind: int, by: int = 1) -> tuple[int, ...]:
    return (*counts[:kind], counts[kind] + by, *counts[kind + 1 :])
