"""No adversary passes the limit of a plan filter, and each wrong rule lets one (ADR 0038)."""

from collections.abc import Callable
from dataclasses import fields, replace
from math import log

import numpy as np
import pytest

from tests.soak import thinned

from .plan_draws import (
    ALONE,
    HELD,
    INTERLEAVED,
    NOTHING,
    PARALLEL,
    SHAPES,
    Game,
    Shape,
    draw,
    draw_leaving,
    draw_plan_alone,
)
from .plan_games import Kind, delta_both_ways
from .plan_rules import Variants

ROUNDING = 1e-9
INSTANCES = 1000
OF_ONE_SEED = 100

Draw = Callable[[np.random.Generator], Game]


def draw_one_run(random: np.random.Generator) -> Game:
    return draw(random, ALONE)


DRAWS: dict[str, Draw] = {
    "left_plan_goes_to_orders": draw_leaving,
    "chooses_plan_later": draw_plan_alone,
    "shares_grow": lambda random: draw(random, ALONE, limits=True),
    "rescales_what_is_left": lambda random: draw(random, ALONE, limits=True),
    "revives_after_uncovered": lambda random: draw(random, ALONE, limits=True),
    "holds_do_not_count": lambda random: draw(random, HELD),
    "forgets_taken_uncovered": lambda random: draw(random, HELD),
    "void_returns_twice": lambda random: draw(random, HELD),
    "largest_part_alone": lambda random: draw(random, [INTERLEAVED[0], PARALLEL[1]]),
    "ranks_whole_parts": lambda random: draw(random, PARALLEL),
}
"""Games in which a wrong rule is seen; others are seen where there is one run."""


@pytest.mark.parametrize("seed", thinned(range(40), 40))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_no_adversary_gets_past_the_limit(shape: Shape, seed: int) -> None:
    """There are ten shapes: of one run, of several, with disjoint parts, with reservations; half have other limits."""
    random = np.random.default_rng(seed)
    assert max(draw(random, [shape]).excess() for _ in range(OF_ONE_SEED)) <= ROUNDING


@pytest.mark.parametrize("seed", thinned(range(4), 4))
@pytest.mark.parametrize("drawn", [draw_plan_alone, draw_leaving])
def test_no_adversary_gets_past_a_limit_that_is_the_plans(drawn: Draw, seed: int) -> None:
    random = np.random.default_rng(seed)
    assert max(drawn(random).excess() for _ in range(OF_ONE_SEED)) <= ROUNDING


@pytest.mark.parametrize(
    "shape", [Shape(1, 1, 1, 6, 0), Shape(2, 2, 1, 5, 0), Shape(3, 2, 1, 6, 0), Shape(1, 1, 1, 5, 2)]
)
def test_a_plan_is_used_up_exactly(shape: Shape) -> None:
    game = Game(1.5, (Kind.exchanged(0.7),), (0,) * 6, 4, (NOTHING, NOTHING), 0.0, ((0.9, 1.0), (1.0, 0.5)), shape)
    assert game.value() == pytest.approx(game.plan_delta, rel=1e-12)


@pytest.mark.parametrize("wrong", [field.name for field in fields(Variants)])
def test_every_wrong_rule_is_caught(wrong: str) -> None:
    random = np.random.default_rng(7)
    drawn = DRAWS.get(wrong, draw_one_run)
    variants = replace(Variants(), **{wrong: True})
    assert any(drawn(random).excess(variants) > 0.01 for _ in range(2 * INSTANCES))


def test_units_may_leave_their_part_where_pairs_are_equal_in_both_directions() -> None:
    random = np.random.default_rng(9)
    games = [draw(random, [INTERLEAVED[0], PARALLEL[1]]) for _ in range(INSTANCES // 5)]
    assert max(game.excess(moved=True) for game in games) <= ROUNDING


def unequal(random: np.random.Generator) -> Game:
    """A plan of two mechanisms whose two directions differ, alone with the limit's delta."""
    kinds = tuple(Kind((float(10 ** random.uniform(-3, -0.1)), float(10 ** random.uniform(-3, -0.1)))) for _ in "ab")
    losses = [abs(log(p / q)) for kind in kinds for p, q in (kind.first, (1 - kind.first[0], 1 - kind.first[1]))]
    epsilon = float(random.uniform(0.5, 1)) * (max(losses[:2]) + max(losses[2:]))
    return Game(epsilon, kinds, (0, 1), 2, (NOTHING, NOTHING), 0.0, (), Shape(2, 2, 2, 2, 0))


def test_units_may_not_leave_their_part_where_the_directions_of_pairs_differ() -> None:
    """A part that loses a unit and one that gains it have pairs of both directions, which no plan bounds."""
    random = np.random.default_rng(10)
    games = [game for game in (unequal(random) for _ in range(INSTANCES)) if game.plan_delta > ROUNDING]
    assert max(game.excess() for game in games) <= ROUNDING
    assert max(game.excess(moved=True) for game in games) > 10


def test_an_exact_delta_is_that_of_all_outputs() -> None:
    kinds = (Kind.exchanged(0.5), Kind((0.3, 0.1)))
    (a, b), (c, d) = kinds[0].first, kinds[1].first
    forward = [(x * y, z * w) for x, z in ((a, b), (1 - a, 1 - b)) for y, w in ((c, d), (1 - c, 1 - d))]
    both = [sum(max(0.0, p - np.exp(0.4) * q) for p, q in pairs) for pairs in (forward, [(q, p) for p, q in forward])]
    assert delta_both_ways(kinds, 0.4, (1, 1)) == pytest.approx(max(both), rel=1e-12)
