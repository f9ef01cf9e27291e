"""The rule of the plan filter for small games, and wrong ones (ADR 0038).

An account has parts, of which those that may hold the adversary's unit count: all of them are interleaved runs, fewer
are disjoint parts. By symmetry the unit is in the first ones. What others' data show is the same on both neighbours,
but the adversary chooses it. Limits change at any moment, and each is at most a named one, whose delta no value may
pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from operator import le
from typing import NamedTuple

from .plan_games import SILENT, Board, solve

Vector = tuple[float, ...]


@dataclass(frozen=True)
class Variants:
    """What a wrong rule does; none of it: the right one."""

    full_delta_everywhere: bool = False
    forgets_uncovered: bool = False
    own_deltas_of_covered_are_free: bool = False
    reserve_is_not_subtracted: bool = False
    counts_without_levels: bool = False
    covers_stronger: bool = False
    shares_grow: bool = False
    chooses_plan_later: bool = False
    left_plan_goes_to_orders: bool = False
    rescales_what_is_left: bool = False
    revives_after_uncovered: bool = False
    holds_do_not_count: bool = False
    forgets_taken_uncovered: bool = False
    void_returns_twice: bool = False
    largest_part_alone: bool = False
    ranks_whole_parts: bool = False

    @property
    def needs_limit(self) -> bool:
        """Whether more than the charges matters: the limits in force so far."""
        return self.rescales_what_is_left or self.revives_after_uncovered


RIGHT = Variants()


@dataclass(frozen=True)
class Terms:
    """What a limit admits.

    Args:
        plans: capacity of the plan; several: a wrong rule may take any of them.
        bounds: of each order.
        reserve: for own deltas.
        bounds_without_plan: of each order, if it had the plan's delta as well.
    """

    plans: tuple[Vector, ...]
    bounds: Vector
    reserve: float
    bounds_without_plan: Vector = ()


@dataclass(frozen=True)
class Cost:
    """What one mechanism uses of each coordinate."""

    plan: Vector
    orders: Vector
    own: float


class Part(NamedTuple):
    """Numbers of mechanisms of each kind in one part.

    Args:
        charged: released, or forfeited.
        held: reserved.
        offset: what a wrong rule adds to what is used of the plan.
    """

    charged: tuple[int, ...]
    held: tuple[int, ...]
    offset: Vector = ()


class State(NamedTuple):
    """Where a game is.

    Args:
        holds: number of reservations that may still be made.
        limit: in force, where a wrong rule makes it matter.
        changes: number of times that it may still change.
    """

    parts: tuple[Part, ...]
    holds: int
    limit: int = 0
    changes: int = 0


@dataclass(frozen=True)
class Rule:
    """An account's rule.

    Args:
        costs: of each kind.
        limits: the named one first.
        parts: number of parts.
        counting: number of parts that count.
        rounds: most charges and holds at once.
        holds: most reservations.
        moved: whether the unit leaves one part for another, so that each part has axes of its own.
    """

    costs: tuple[Cost, ...]
    limits: tuple[Terms, ...]
    parts: int
    counting: int
    rounds: int
    holds: int
    moved: bool = False
    variants: Variants = RIGHT
    _used: dict[Part, tuple[Vector, Vector, float]] = field(default_factory=dict, repr=False)
    _allowed: dict[tuple[tuple[Part, ...], int, bool], bool] = field(default_factory=dict, repr=False)

    @cached_property
    def start(self) -> State:
        """The beginning."""
        nothing = (0,) * len(self.costs)
        part = Part(nothing, nothing, self.no_offset if self._keeps_offset else ())
        return State((part,) * self.parts, self.holds, 0, 2 if self.variants.needs_limit else 0)

    @cached_property
    def no_offset(self) -> Vector:
        """As many zeros as the plan has coordinates."""
        return (0,) * len(self.costs[0].plan)

    @property
    def _keeps_offset(self) -> bool:
        wrong = self.variants
        return (
            wrong.rescales_what_is_left
            or wrong.revives_after_uncovered
            or wrong.forgets_taken_uncovered
            or wrong.void_returns_twice
        )

    def value(self, board: Board, epsilon: float) -> float:
        """Compute the largest divergence that an adversary reaches."""
        return solve(board, epsilon, self.start, self.moves)

    def moves(self, state: State) -> Iterator[tuple[int, State]]:
        """List all that the rule admits."""
        taken = sum(sum(part.charged) + sum(part.held) for part in state.parts)
        for place, part in enumerate(state.parts):
            for kind in range(len(self.costs)):
                if taken < self.rounds:
                    after = self.with_part(state, place, part._replace(charged=_more(part.charged, kind)))
                    if self.admits(after, kind):
                        yield self._axis(place, kind), after
                        if state.holds:  # it would be as much
                            held = part._replace(held=_more(part.held, kind))
                            yield SILENT, self.with_part(state, place, held)._replace(holds=state.holds - 1)
                if part.held[kind]:
                    yield from self._ends_of_hold(state, place, kind)
        if state.changes:
            for limit in range(len(self.limits)):
                if limit != state.limit:
                    yield SILENT, self._changed(state, limit)

    def _ends_of_hold(self, state: State, place: int, kind: int) -> Iterator[tuple[int, State]]:
        """Take a hold, let it lapse, or make it void."""
        part, cost = state.parts[place], self.costs[kind].plan
        left = part._replace(held=_more(part.held, kind, -1))
        taken = lapsed = left._replace(charged=_more(part.charged, kind))
        void = left
        if self.variants.forgets_taken_uncovered and cost[0]:
            taken = taken._replace(offset=_sum(taken.offset, cost, -1))
        if self.variants.void_returns_twice:
            void = void._replace(offset=_sum(void.offset, cost, -1))
        yield self._axis(place, kind), self.with_part(state, place, taken)
        if place < self.counting:  # on others' data it is as if it had been taken
            yield SILENT, self.with_part(state, place, lapsed)
        yield SILENT, self.with_part(state, place, void)

    def with_part(self, state: State, place: int, part: Part) -> State:
        """Replace a part; those that count may be exchanged, and so may the others."""
        parts = [*state.parts[:place], part, *state.parts[place + 1 :]]
        return state._replace(parts=tuple(parts) if self.moved else self._sorted(parts))

    def _sorted(self, parts: list[Part]) -> tuple[Part, ...]:
        return (*sorted(parts[: self.counting]), *sorted(parts[self.counting :]))

    def _axis(self, place: int, kind: int) -> int:
        if place >= self.counting:
            return SILENT
        return kind + place * len(self.costs) if self.moved else kind

    def _changed(self, state: State, limit: int) -> State:
        """Change the limit; what a wrong rule then forgets."""
        parts = state.parts
        if self.variants.revives_after_uncovered:
            parts = tuple(
                part._replace(offset=(part.offset[0] - self.used(part)[0][0], *part.offset[1:])) for part in parts
            )
        if self.variants.rescales_what_is_left:
            assert len(parts) == 1, "what is left is an account's"
            before, after = self.limits[state.limit].plans[0], self.limits[limit].plans[0]
            used = self.used(parts[0])[0]
            left = [max(0, there - taken) for there, taken in zip(before, used, strict=True)]
            kept = [-(-each * new // old) if old else 0 for each, old, new in zip(left, before, after, strict=True)]
            moved = [new - each - taken for new, each, taken in zip(after, kept, used, strict=True)]
            parts = (parts[0]._replace(offset=_sum(parts[0].offset, (0, *moved[1:]), 1)),)
        return state._replace(parts=self._sorted(list(parts)), limit=limit, changes=state.changes - 1)

    def admits(self, after: State, kind: int) -> bool:
        """Apply the rule to what would be charged and held, the last of it of one kind."""
        by_orders_only = self.variants.forgets_uncovered and not any(self.costs[kind].plan)
        key = (after.parts, after.limit, by_orders_only)
        found = self._allowed.get(key)
        if found is None:
            limits = self.limits if not self.variants.needs_limit else [self.limits[after.limit]]
            found = any(self._is_within(after.parts, terms, planned=not by_orders_only) for terms in limits)
            self._allowed[key] = found
        return found

    def _is_within(self, parts: tuple[Part, ...], terms: Terms, *, planned: bool) -> bool:
        plans, orders, owns = zip(*map(self.used, parts), strict=True)
        if self._largest([(own,) for own in owns])[0] > terms.reserve:
            return False
        used = self._whole_parts(list(plans)) if self.variants.ranks_whole_parts else self._largest(list(plans))
        if planned and any(_fits(used, plan) for plan in terms.plans):
            return True
        left = self.variants.left_plan_goes_to_orders and used[0]
        bounds = terms.bounds_without_plan if left else terms.bounds
        return any(taken <= bound for taken, bound in zip(self._largest(list(orders)), bounds, strict=True))

    def _largest(self, vectors: list[Vector]) -> Vector:
        """Sum the largest values of each coordinate."""
        if len(vectors) == 1:
            return vectors[0]
        many = 1 if self.variants.largest_part_alone else self.counting
        return tuple(sum(sorted(column)[-many:]) for column in zip(*vectors, strict=True))

    def _whole_parts(self, vectors: list[Vector]) -> Vector:
        """Sum the parts with the largest totals."""
        return tuple(map(sum, zip(*sorted(vectors, key=sum)[-self.counting :], strict=True)))

    def used(self, part: Part) -> tuple[Vector, Vector, float]:
        """Count what a part uses of the plan, of the orders and of the reserve, with what it holds."""
        found = self._used.get(part)
        if found is None:
            total = [charged + held for charged, held in zip(part.charged, part.held, strict=True)]
            planned = part.charged if self.variants.holds_do_not_count else total
            plan: Vector = part.offset or self.no_offset
            orders: Vector = (0,) * len(self.costs[0].orders)
            for cost, count, of_plan in zip(self.costs, total, planned, strict=True):
                plan, orders = _sum(plan, cost.plan, of_plan), _sum(orders, cost.orders, count)
            own = sum(
                count * cost.own
                for cost, count in zip(self.costs, total, strict=True)
                if not (self.variants.own_deltas_of_covered_are_free and not cost.plan[0])
            )
            found = self._used[part] = (plan, orders, own)
        return found


def _more(counts: tuple[int, ...], kind: int, by: int = 1) -> tuple[int, ...]:
    return (*counts[:kind], counts[kind] + by, *counts[kind + 1 :])


def _sum(one: Vector, other: Vector, times: float) -> Vector:
    return tuple([a + b * times for a, b in zip(one, other, strict=True)])


def _fits(used: Vector, capacity: Vector) -> bool:
    return all(map(le, used, capacity))
