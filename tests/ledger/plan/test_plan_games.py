"""No adversary passes the limit of an account with a plan (ADR 0038), exactly, against the rules of the ledger itself.

Mechanisms exchange two outputs of ratio e^epsilon, and with probability delta show which of two neighbours they saw: no
other (epsilon, delta) mechanisms are worse. After each output the adversary chooses what is next among all that the
accounts admit: a charge, a hold or its end, or another limit, which is at most the named one. What it has seen matters
only by its privacy loss, and both directions are alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import exp, fsum, prod
from random import Random
from typing import NamedTuple

import pytest

from app.accounting.events import EpsilonDelta, NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import hold_if_fitting, record
from app.ledger.filter.limits import Limit
from app.ledger.step_events import StepEvent
from tests.ledger.ledger_model import LedgerModel, limited_to
from tests.soak import thinned

ADD, REPLACE, _ = NeighboringRelation
Move = tuple[EpsilonDelta | None, int]
"""What is shown of the unit, and the state that follows."""


class Shape(NamedTuple):
    """Most charges and holds at once, most reservations, lower limits, and disjoint parts of which some count."""

    rounds: int
    holds: int = 0
    limits: int = 0
    parts: int = 0
    counting: int = 0
    relation: NeighboringRelation = ADD


SHAPES = (
    *(Shape(5), Shape(4, holds=2), Shape(4, limits=1), Shape(3, holds=1, limits=1)),
    *(Shape(4, parts=2, counting=1), Shape(3, parts=3, counting=2), Shape(3, 1, parts=2, counting=1)),
    Shape(3, parts=3, counting=1, relation=REPLACE),
)


class State(NamedTuple):
    """Where a game is, and how many moves of each kind are left."""

    model: LedgerModel
    rounds: int
    holds: int
    changes: int

    @property
    def key(self) -> object:
        """What decides about the moves from here on."""
        accounts = [(each.spent, each.held, each.weights) for each in self.model.accounts.values()]
        return (*self[1:], *accounts, *sorted(self.model.holds, key=str))

    def after(self, accounts: tuple[Account, ...], **changed: int) -> "State":
        """Copy it with other accounts."""
        model = self.model.copy()
        model.put(accounts)
        return self._replace(model=model, **changed)


@dataclass(frozen=True)
class Game:
    """A ledger that an adversary plays against; its unit is in the parts of some runs."""

    kinds: tuple[EpsilonDelta, ...]
    limits: tuple[Limit, ...]
    seen: tuple[str, ...]
    _numbers: dict[object, int] = field(default_factory=dict)
    _moves: dict[int, list[Move]] = field(default_factory=dict)
    _values: dict[tuple[int, float], float] = field(default_factory=dict)

    def number(self, state: State) -> int:
        """Number a state, and all that may follow it."""
        key = state.key
        if key not in self._numbers:
            self._numbers[key] = number = len(self._numbers)
            self._moves[number] = [(event, self.number(after)) for event, after in self._admitted(state)]
        return self._numbers[key]

    def value(self, state: int, loss: float = 0.0) -> float:
        """Compute the largest divergence that is reached after a loss, per probability of what was seen."""
        key = (state, round(loss, 9))
        if key not in self._values:
            best = max(0.0, 1 - exp(self.limits[0].epsilon - loss))
            for event, after in self._moves[state]:
                if event is None:
                    best = max(best, self.value(after, loss))
                    continue
                likely = 1 / (1 + exp(-event.epsilon))
                more, less = (self.value(after, loss + sign * event.epsilon) for sign in (1, -1))
                best = max(best, event.delta + (1 - event.delta) * (likely * more + (1 - likely) * less))
            self._values[key] = best
        return self._values[key]

    def _admitted(self, state: State) -> Iterator[tuple[EpsilonDelta | None, State]]:
        model, rounds = state.model, state.rounds
        for run, event in product(model.budgets, self.kinds):
            shown, step = event if run in self.seen else None, [model.step(event)]
            if rounds:
                charged = record(path := model.path(run), step)
                if not charged.overdrawn:
                    yield shown, state.after(charged.accounts, rounds=rounds - 1)
                held = hold_if_fitting(path, step) if state.holds else None
                if held is not None:
                    after = state.after(held, rounds=rounds - 1, holds=state.holds - 1)
                    after.model.holds.append((run, event, 1))
                    yield None, after
            if (run, event, 1) in model.holds:
                for executed in (0, 1):
                    after = state.after((), rounds=rounds + 1 - executed)
                    after.model.settle((run, event, 1), executed)
                    yield shown if executed else None, after
        for limit in self.limits if state.changes else ():
            if limit != model.accounts["p"].limit:
                yield None, state.after((limited_to(model.accounts["p"], limit),), changes=state.changes - 1)


def delta_of(epsilons: list[float], epsilon: float) -> float:
    """The exact delta of mechanisms that were fixed in advance, without their own."""
    outputs = [list(zip(signs, epsilons, strict=True)) for signs in product((1, -1), repeat=len(epsilons))]
    chances = (prod(1 / (1 + exp(-sign * each)) for sign, each in output) for output in outputs)
    losses = (fsum(sign * each for sign, each in output) for output in outputs)
    return fsum(chance * max(0.0, 1 - exp(epsilon - loss)) for chance, loss in zip(chances, losses, strict=True))


def play(random: Random, shape: Shape) -> tuple[float, Limit, float]:
    """Draw a plan that its limit just allows; find what an adversary reaches, and the exact delta of the plan."""
    epsilons, share = sorted(random.sample((0.2, 0.4, 0.7, 1.1, 1.6), 2)), random.choice([0.975, 0.55, 0.3])
    plan = random.choices(epsilons, k=random.randint(2, min(4, shape.rounds)))
    epsilon = random.uniform(0.4, 0.9) * fsum(plan)
    exact = delta_of(plan, epsilon)
    if exact > 0.4 * share:  # no limit has so large a delta
        return play(random, shape)
    named = Limit(epsilon, exact / share * 1.001)
    kinds = tuple(EpsilonDelta(each, random.choice([0.0, 0.0, 0.003 * exact, 0.05 * exact])) for each in epsilons)
    model = LedgerModel(shape.relation, {kind: event_curve(kind, shape.relation) for kind in kinds})
    items = [StepEvent(kinds[epsilons.index(each)], 1) for each in plan]
    model.open("p", None, (named.epsilon, named.delta), items, shape.counting or None, share)
    for part in "abc"[: shape.parts]:
        model.open(part, "p")
        assert model.register(f"run_{part}", part)
    assert shape.parts or model.register("run", "p")
    lower = [random.uniform(0.5, 1), 10 ** random.uniform(-0.6, 0)]
    limits = (named, *[Limit(epsilon * lower[0], named.delta * lower[1])] * shape.limits)
    counting = max(1, shape.counting * (2 if shape.relation is REPLACE else 1))
    game = Game(kinds, limits, tuple(model.budgets)[:counting])
    value = game.value(game.number(State(model, shape.rounds, shape.holds, 2 * shape.limits)))
    return value, named, 0.0 if any(kind.delta for kind in kinds) else exact


@pytest.mark.parametrize("seed", thinned(range(40), 40))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_no_adversary_gets_past_the_limit_and_one_uses_up_the_plan(shape: Shape, seed: int) -> None:
    random = Random(f"{shape[:5]} {seed}")  # noqa: S311 - a seed
    for _ in range(3):
        value, limit, exact = play(random, shape)
        assert exact * (1 - 1e-9) <= value <= limit.delta * (1 + 1e-9)
