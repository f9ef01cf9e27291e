"""Settings of allocations: their ranges, their JSON, and when which part of a limit is unlocked."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.errors import InvalidInputError
from app.ledger.settings.allocation import (
    MAX_PARTS,
    MAX_SECONDS,
    Allocation,
    SchedulingRule,
    Share,
    Unlock,
    UnlockByReservations,
    UnlockOverTime,
    allocation_of,
    facts_of,
    unlocks_earlier,
)

SINCE = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
TICK = timedelta(microseconds=1)

moments = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - UTC is given
tenths = st.integers(0, 10).map(lambda each: each / 10)


@st.composite
def over_time(draw: st.DrawFn) -> UnlockOverTime:
    parts = draw(st.integers(1, MAX_PARTS) | st.sampled_from([1, 3, 7, MAX_PARTS]))
    least, most = timedelta(seconds=parts), timedelta(seconds=MAX_SECONDS)
    return UnlockOverTime(draw(moments), draw(st.timedeltas(least, most) | st.sampled_from([least, most])), parts)


by_reservations = st.builds(UnlockByReservations, moments, st.integers(1, 1_000_000))
unlocks: st.SearchStrategy[Unlock] = over_time() | by_reservations


@st.composite
def shares(draw: st.DrawFn) -> dict[str, Share]:
    """Shares whose minimums are tenths that sum to one at most."""
    found, left = {}, 10
    for name in draw(st.lists(st.sampled_from(["bud_a", "bud_b", "bud_c", "bud_d"]), unique=True)):
        minimum = draw(st.integers(0, left))
        left -= minimum
        maximum = draw(st.integers(max(minimum, 1), 10))
        found[name] = Share(minimum / 10, maximum / 10, draw(st.floats(0.001, 1000)))
    return found


allocations = st.builds(
    Allocation,
    rule=st.none() | st.sampled_from(SchedulingRule),
    aging_seconds=st.none() | st.integers(0, MAX_SECONDS),
    unlock=st.none() | unlocks,
    shares=shares(),
)


@given(allocations)
def test_an_allocation_is_the_same_after_a_round_trip_through_json(allocation: Allocation) -> None:
    assert allocation_of(json.loads(json.dumps(facts_of(allocation)))) == allocation


@given(over_time(), st.data())
def test_a_window_begins_at_the_first_microsecond_at_which_it_is_counted(
    unlock: UnlockOverTime, data: st.DataObject
) -> None:
    window = data.draw(st.integers(0, unlock.parts - 1))
    begin = unlock.begin(window)
    assert unlock.window(begin) == window
    assert unlock.window(begin - TICK) == window - 1
    assert unlock.fraction(begin) == Fraction(window + 1, unlock.parts)
    assert unlock.fraction(begin - TICK) == Fraction(window, unlock.parts)
    exact = Fraction(window * (unlock.over // TICK), unlock.parts)
    assert 0 <= (begin - unlock.since) // TICK - exact < 1


@given(over_time(), moments)
def test_a_window_is_the_whole_number_of_parts_that_have_passed(unlock: UnlockOverTime, now: datetime) -> None:
    passed = Fraction((now - unlock.since) // TICK, unlock.over // TICK) * unlock.parts
    assert unlock.window(now) == (-1 if passed < 0 else min(passed.__floor__(), unlock.parts - 1))


def test_a_limit_is_unlocked_at_the_beginning_of_its_windows() -> None:
    unlock = UnlockOverTime(SINCE, timedelta(seconds=10), 3)
    assert [(unlock.begin(each) - SINCE) // TICK for each in range(3)] == [0, 3_333_334, 6_666_667]
    after = {-1: 0, 0: 1, 3_333_333: 1, 3_333_334: 2, 6_666_667: 3, 9000 * 86_400_000_000: 3}
    assert {each: unlock.fraction(SINCE + each * TICK) * 3 for each in after} == after


@given(by_reservations, st.integers(0, 2_000_000))
def test_each_run_that_asks_unlocks_a_fair_share_until_all_is_unlocked(
    unlock: UnlockByReservations, asked: int
) -> None:
    assert unlock.fraction(asked) == min(Fraction(asked, unlock.reservations), Fraction(1))


def _over(seconds: float, parts: int = 1) -> UnlockOverTime:
    return UnlockOverTime(SINCE, timedelta(seconds=seconds), parts)


OUT_OF_RANGE: dict[str, list[Callable[[], object]]] = {
    "parts": [lambda: _over(10, 0), lambda: _over(MAX_SECONDS, MAX_PARTS + 1)],
    "over_seconds": [lambda: _over(2.999999, 3), lambda: _over(MAX_SECONDS + 1)],
    "reservations": [lambda: UnlockByReservations(SINCE, 0), lambda: UnlockByReservations(SINCE, 1_000_001)],
    "shares": [
        *(partial(Share, least) for least in (-0.1, nan)),
        *(partial(Share, *both) for both in ((0.6, 0.5), (0.0, 1.1), (0.0, 0.0), (0.0, nan))),
        *(partial(Share, weight=weight) for weight in (0.0009, 1000.1, inf, nan)),
        lambda: Allocation(shares={"a": Share(0.5), "b": Share(0.5), "c": Share(1e-9)}),
    ],
    "aging_seconds": [lambda: Allocation(aging_seconds=-1), lambda: Allocation(aging_seconds=MAX_SECONDS + 1)],
}


@pytest.mark.parametrize(("make", "field"), [(make, field) for field, some in OUT_OF_RANGE.items() for make in some])
def test_a_setting_out_of_range_is_refused(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        make()
    assert refused.value.members["field"] == field


@given(st.lists(tenths, min_size=1, max_size=8))
def test_minimums_are_summed_as_they_are_written(minimums: list[float]) -> None:
    whole = {f"bud_{place}": Share(minimum) for place, minimum in enumerate(minimums)}
    if sum(round(each * 10) for each in minimums) <= 10:
        assert Allocation(shares=whole).share_of("bud_0") == Share(minimums[0])
    else:
        with pytest.raises(InvalidInputError):
            Allocation(shares=whole)


def test_a_budget_without_a_share_has_the_default() -> None:
    allocation = Allocation(shares={"bud_a": Share(0.2, 0.4, 3.0)})
    assert allocation.share_of("bud_a") == Share(0.2, 0.4, 3.0)
    assert allocation.share_of("bud_b") == Share(0.0, 1.0, 1.0)


def _usable(unlock: Unlock | None, now: datetime, arrivals: int) -> Fraction:
    if unlock is None:
        return Fraction(1)
    return unlock.fraction(now) if isinstance(unlock, UnlockOverTime) else unlock.fraction(arrivals)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Unlock | None, Unlock | None]:
    """An unlock and another one, which often differs a little."""
    was = draw(st.none() | unlocks)
    if not isinstance(was, UnlockOverTime) or draw(st.booleans()):
        return was, draw(st.none() | unlocks)
    parts = min(MAX_PARTS, was.parts * draw(st.integers(1, 4)) + draw(st.integers(0, 2)))
    over = was.over * draw(st.sampled_from([1, 2])) + draw(st.integers(-1, 1)) * timedelta(seconds=parts)
    over = min(max(over, timedelta(seconds=parts)), timedelta(seconds=MAX_SECONDS))
    return was, UnlockOverTime(was.since + draw(st.integers(-1, 1)) * TICK, over, parts)


@given(changes(), st.lists(st.floats(-0.1, 1.2), min_size=1), st.integers(0, 1_000_000))
def test_unlock_that_is_not_called_earlier_never_unlocks_more(
    change: tuple[Unlock | None, Unlock | None], moments: list[float], arrivals: int
) -> None:
    was, will = (None if each is None else Allocation(SchedulingRule.FIRST_COME, unlock=each) for each in change)
    if unlocks_earlier(was, will):
        return
    begins = SINCE if change[0] is None else change[0].since
    length = change[0].over if isinstance(change[0], UnlockOverTime) else timedelta(days=1)
    for place in moments:
        now = begins + place * length
        # An unlock that begins later has counted fewer plans.
        later = change[0] is not None and change[1] is not None and change[1].since > change[0].since
        assert _usable(change[1], now, arrivals // 2 if later else arrivals) <= _usable(change[0], now, arrivals)


def _days(days: int, parts: int, later: timedelta = timedelta(0)) -> UnlockOverTime:
    return UnlockOverTime(SINCE + later, timedelta(days=days), parts)


TEN, NINE = UnlockByReservations(SINCE, 10), _days(9, 9)
NOT_EARLIER: list[tuple[Unlock | None, Unlock | None]] = [
    *((None, None), (None, UnlockByReservations(SINCE, 1)), (TEN, TEN), (TEN, UnlockByReservations(SINCE + TICK, 11))),
    *((NINE, NINE), (NINE, _days(9, 18)), (NINE, _days(10, 10)), (NINE, _days(9, 9, TICK))),
]
EARLIER: list[tuple[Unlock | None, Unlock | None]] = [
    *((TEN, None), (TEN, UnlockByReservations(SINCE, 9)), (TEN, UnlockByReservations(SINCE - TICK, 10)), (TEN, NINE)),
    *((NINE, _days(9, 10)), (NINE, _days(9, 8)), (NINE, _days(8, 9)), (NINE, _days(9, 9, -TICK))),
]


@pytest.mark.parametrize(
    ("was", "will", "earlier"), [*((*each, True) for each in EARLIER), *((*each, False) for each in NOT_EARLIER)]
)
def test_an_unlock_is_earlier_unless_it_is_plainly_not(was: Unlock | None, will: Unlock | None, earlier: bool) -> None:  # noqa: FBT001 - a parameter of the test
    before, after = (
        None if each is None else Allocation(SchedulingRule.FIRST_COME, unlock=each) for each in (was, will)
    )
    assert unlocks_earlier(before, after) is earlier
    # An allocation without an unlock makes the whole limit usable.
    plain = Allocation(SchedulingRule.FIRST_COME)
    assert unlocks_earlier(before, plain) is (was is not None)
