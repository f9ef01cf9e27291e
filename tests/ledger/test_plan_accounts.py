"""Real accounts with a plan against the best adversary: they admit what the rule of the games admits, and no more."""

import numpy as np
import pytest

from app.accounting.events import NeighboringRelation
from tests.soak import thinned

from .plan_accounts import ROUNDING, RealGame
from .plan_draws import ALONE, HELD, INTERLEAVED, PARALLEL, Game, Shape, draw
from .plan_games import Kind

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE

REAL = (*ALONE, *HELD, *INTERLEAVED, *(shape._replace(rounds=min(shape.rounds, 3)) for shape in PARALLEL))

HAND_MADE = 5
"""Games of each shape with weights in which orders, plan and reserve all matter."""

CHOSEN = 1
"""Games of each shape with the weights that the ledger chooses."""

CHANGED = (*ALONE, Shape(1, 1, 2, 3, 1), Shape(2, 2, 2, 3, 0), Shape(2, 1, 2, 3, 0))
"""Shapes of games with other limits: each limit has states of its own."""


def drawn(random: np.random.Generator, shape: Shape, *, limits: bool) -> Game:
    """Draw a game with a delta that a limit may have."""
    while True:
        game = draw(random, [shape], limits=limits)
        if game.delta() < 0.45 and game.plan_delta > 1e-12:
            return game


def assert_sound(real: RealGame) -> int:
    assert real.value() <= real.limit.delta * (1 + ROUNDING)
    assert real.differences == []
    return real.states


@pytest.mark.parametrize("seed", thinned(range(60), 60))
@pytest.mark.parametrize("shape", REAL, ids=lambda shape: "-".join(map(str, shape)))
def test_accounts_admit_what_the_rule_admits(shape: Shape, seed: int) -> None:
    random = np.random.default_rng(seed)
    games = [drawn(random, shape, limits=False) for _ in range(HAND_MADE)]
    assert sum(assert_sound(RealGame(game)) for game in games) > 5 * HAND_MADE


@pytest.mark.parametrize("seed", thinned(range(30), 30))
@pytest.mark.parametrize("shape", REAL, ids=lambda shape: "-".join(map(str, shape)))
def test_chosen_weights_admit_what_the_rule_admits(shape: Shape, seed: int) -> None:
    random = np.random.default_rng(seed)
    games = [drawn(random, shape, limits=False) for _ in range(CHOSEN)]
    # The reserve is small where the ledger chooses: most games with own deltas are short.
    games += [game.without_own_deltas() for game in games]
    assert sum(assert_sound(RealGame(game, chosen=True)) for game in games) > 5 * CHOSEN


@pytest.mark.parametrize("seed", thinned(range(30), 30))
@pytest.mark.parametrize("shape", CHANGED, ids=lambda shape: "-".join(map(str, shape)))
def test_accounts_whose_limit_changes_stay_within_the_largest(shape: Shape, seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(CHOSEN):
        assert_sound(RealGame(drawn(random, shape, limits=True), changes=2))
        assert_sound(RealGame(drawn(random, shape, limits=True), chosen=True, changes=2))


@pytest.mark.parametrize("shape", [PARALLEL[1], Shape(3, 2, 2, 2, 1)])
def test_twice_as_many_parts_count_where_units_are_replaced(shape: Shape) -> None:
    random = np.random.default_rng(11)
    for _ in range(CHOSEN):
        assert_sound(RealGame(drawn(random, shape, limits=False), relation=REPLACE))


@pytest.mark.parametrize("shape", [Shape(1, 1, 1, 6, 0), INTERLEAVED[0]._replace(kinds=1), HELD[0]._replace(kinds=1)])
def test_accounts_use_a_plan_up_exactly(shape: Shape) -> None:
    game = Game(1.5, (Kind.exchanged(0.7),), (0,) * 6, 4, (1e-30, 1e-29), 1e-30, (), shape)
    assert RealGame(game).value() == pytest.approx(game.plan_delta, rel=1e-9)
