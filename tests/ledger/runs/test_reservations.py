"""Reservations: whatever happens, reserved = committed + returned + forfeited, and an end is for ever."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent, Gaussian
from app.ledger.errors import InvalidInputError, ReservationClosedError, ReservationStateConflictError
from app.ledger.filter.parallel_exposure import is_exact, without
from app.ledger.runs import reservation_closing, reservation_use, reservations
from app.ledger.runs.reservation_closing import ReservationClose
from app.ledger.runs.reservations import Reservation, ReservationStatus, Shortfall
from app.ledger.step_events import StepEvent

NOW = datetime(2026, 12, 1, tzinfo=UTC)
EVENTS = [Gaussian(1.0), Gaussian(2.0), Gaussian(3.0)]
STRANGER = Gaussian(9.0)
STEPS = st.lists(st.builds(StepEvent, st.sampled_from(EVENTS), st.integers(1, 50)), min_size=1, max_size=6)
ENDS: dict[str, Callable[[Reservation], ReservationClose]] = {
    "commit": lambda reservation: reservation_closing.commit(reservation, reservation.steps_used),
    "void": reservation_closing.void,
    "forfeit": reservation_closing.forfeit,
}


def _reservation(steps: Iterable[StepEvent], *used: int) -> Reservation:
    items = reservations.items_of(list(steps))
    items = tuple(replace(item, used=times) for item, times in zip(items, used or (0,) * len(items), strict=True))
    return Reservation("res_1", "run_1", 1, ReservationStatus.ACTIVE, items, 60, NOW + timedelta(seconds=60))


def _count(steps: Iterable[StepEvent]) -> Counter[DpEvent]:
    counted: Counter[DpEvent] = Counter()
    for step in steps:
        counted[step.event] += step.count
    return counted


@st.composite
def _some(draw: st.DrawFn) -> Reservation:
    reservation = _reservation(draw(STEPS))
    used = [draw(st.integers(0, item.count)) for item in reservation.items]
    items = (replace(item, used=times) for item, times in zip(reservation.items, used, strict=True))
    return replace(reservation, items=tuple(items))


@given(STEPS)
def test_a_reservation_has_each_event_once_and_all_repetitions(steps: list[StepEvent]) -> None:
    items = reservations.items_of(steps)
    assert Counter({item.event: item.count for item in items}) == _count(steps)
    assert [item.event for item in items] == list(dict.fromkeys(step.event for step in steps))
    assert not any(item.used for item in items)


def test_a_reservation_that_cannot_be_counted_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least one"):
        reservations.items_of([])
    with pytest.raises(InvalidInputError, match="1000000001 repetitions"):
        reservations.items_of([StepEvent(EVENTS[0], 10**9), StepEvent(EVENTS[0], 1)])


@given(_some(), STEPS)
def test_steps_are_taken_all_or_none(reservation: Reservation, steps: list[StepEvent]) -> None:
    asked, left = _count(steps), _count(reservations.remaining_items(reservation))
    taken = reservation_use.take(reservation, steps, NOW)
    if asked <= left:
        assert isinstance(taken, Reservation)
        assert _count(reservations.remaining_items(taken)) == left - asked
        assert taken.steps_used == reservation.steps_used + asked.total()
        assert replace(taken, items=reservation.items) == reservation
    else:
        assert isinstance(taken, Shortfall)
        planned = {item.event for item in reservation.items}
        assert (taken.asked, taken.left) == (asked[taken.event], left[taken.event])
        assert taken.asked > taken.left
        assert taken.is_reserved == (taken.event in planned)


def test_an_event_that_is_not_planned_is_named() -> None:
    taken = reservation_use.take(
        _reservation([StepEvent(EVENTS[0], 5)]), [StepEvent(EVENTS[0], 1), StepEvent(STRANGER, 2)], NOW
    )
    assert taken == Shortfall(STRANGER, 2, 0, is_reserved=False)


@given(_some(), st.data())
def test_a_committed_reservation_is_what_was_executed_and_what_is_returned(
    reservation: Reservation, data: st.DataObject
) -> None:
    executed = data.draw(st.integers(reservation.steps_used, reservation.steps_reserved))
    closing = reservation_closing.commit(reservation, executed)
    closed = closing.reservation
    assert (closed.status, closed.steps_executed, closed.steps_used) == ("committed", executed, executed)
    used = Counter({item.event: item.used for item in closed.items})
    planned = Counter({item.event: item.count for item in reservation.items})
    before = Counter({item.event: item.used for item in reservation.items})
    assert used == before + _count(closing.charged)
    assert planned == used + _count(closing.returned)
    assert (closing.forfeited, closing.replayed) == ((), False)
    again = reservation_closing.commit(closed, executed)
    assert again == replace(closing, charged=(), replayed=True)


def test_steps_executed_beyond_the_authorised_are_charged_in_reservation_order() -> None:
    plan = [StepEvent(EVENTS[0], 5), StepEvent(EVENTS[1], 5), StepEvent(EVENTS[2], 5)]
    closing = reservation_closing.commit(_reservation(plan, 4, 5, 0), 12)
    assert closing.charged == (StepEvent(EVENTS[0], 1), StepEvent(EVENTS[2], 2))
    assert closing.returned == (StepEvent(EVENTS[2], 3),)


@given(_some())
def test_an_attestation_outside_the_reservation_is_refused(reservation: Reservation) -> None:
    with pytest.raises(InvalidInputError, match=f"Send at least {reservation.steps_used}"):
        reservation_closing.commit(reservation, reservation.steps_used - 1)
    with pytest.raises(InvalidInputError, match="report the others"):
        reservation_closing.commit(reservation, reservation.steps_reserved + 1)


@given(_some())
def test_a_reservation_is_voided_only_if_nothing_of_it_was_used(reservation: Reservation) -> None:
    if reservation.steps_used:
        with pytest.raises(ReservationStateConflictError, match="Commit it") as refused:
            reservation_closing.void(reservation)
        assert refused.value.members == {"steps_authorized": reservation.steps_used}
    else:
        closing = reservation_closing.void(reservation)
        assert closing.reservation.status is ReservationStatus.VOIDED
        assert _count(closing.returned) == Counter({item.event: item.count for item in reservation.items})
        assert (closing.charged, closing.forfeited) == ((), ())


@given(_some())
def test_a_forfeited_reservation_is_spent_whole(reservation: Reservation) -> None:
    closing = reservation_closing.forfeit(reservation)
    used = Counter({item.event: item.used for item in closing.reservation.items})
    assert used + _count(closing.forfeited) == Counter({item.event: item.count for item in reservation.items})
    assert (closing.charged, closing.returned) == ((), ())
    assert closing.reservation.steps_executed is None


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", ENDS)
def test_closed_reservation_stays_closed(first: str, second: str) -> None:
    closing = ENDS[first](_reservation([StepEvent(EVENTS[0], 5)]))
    if first == second:
        again = ENDS[second](closing.reservation)
        assert (again.replayed, replace(again, replayed=False)) == (True, closing)
    else:
        with pytest.raises(ReservationClosedError, match="stays so") as refused:
            ENDS[second](closing.reservation)
        assert refused.value.members == {"reservation_status": str(closing.reservation.status)}
    laters: list[Callable[[], object]] = [
        lambda: reservation_use.take(closing.reservation, [StepEvent(EVENTS[0], 1)], NOW),
        lambda: reservation_use.renew(closing.reservation, NOW, NOW),
        lambda: reservation_use.claim(closing.reservation, NOW, NOW),
    ]
    for later in laters:
        with pytest.raises(ReservationClosedError):
            later()


def test_another_attestation_of_a_committed_reservation_is_refused() -> None:
    closed = reservation_closing.commit(_reservation([StepEvent(EVENTS[0], 5)]), 3).reservation
    with pytest.raises(ReservationClosedError, match="committed with 3 steps executed"):
        reservation_closing.commit(closed, 4)


def test_a_lease_runs_out_at_its_moment() -> None:
    reservation = _reservation([StepEvent(EVENTS[0], 5)])
    last = reservation.expires_at - timedelta(microseconds=1)
    assert not reservations.has_lapsed(reservation, last)
    assert isinstance(reservation_use.take(reservation, [StepEvent(EVENTS[0], 1)], last), Reservation)
    assert reservations.has_lapsed(reservation, reservation.expires_at)
    lates: list[Callable[[], object]] = [
        lambda: reservation_use.take(reservation, [StepEvent(EVENTS[0], 1)], reservation.expires_at),
        lambda: reservation_use.renew(reservation, reservation.expires_at, reservation.expires_at),
    ]
    for late in lates:
        with pytest.raises(ReservationClosedError, match="lease ran out"):
            late()
    assert not reservations.has_lapsed(reservation_closing.forfeit(reservation).reservation, reservation.expires_at)


@pytest.mark.parametrize(
    ("claimed", "status", "fate"), [(None, "voided", "is returned"), (NOW, "forfeited", "is forfeited")]
)
def test_renewal_of_a_lapsed_reservation_names_its_end(claimed: datetime | None, status: str, fate: str) -> None:
    granted = replace(_reservation([StepEvent(EVENTS[0], 5)]), granted_at=NOW, claimed_at=claimed)
    for lease in (reservation_use.renew, reservation_use.claim):
        with pytest.raises(ReservationClosedError, match=fate) as caught:
            lease(granted, granted.expires_at, granted.expires_at)
        assert caught.value.members["reservation_status"] == status
    assert str(reservation_closing.forfeit(granted).reservation.status) == status


@given(st.integers(-(10**6), 59))
def test_a_renewal_gives_a_whole_lease_and_never_takes_one(seconds: int) -> None:
    reservation = _reservation([StepEvent(EVENTS[0], 5)])
    now = NOW + timedelta(seconds=seconds)
    for lease in (reservation_use.renew, reservation_use.claim):
        extended = lease(reservation, now, now)
        assert extended.expires_at == max(reservation.expires_at, now + timedelta(seconds=60))
        assert replace(extended, expires_at=reservation.expires_at) == reservation


SOMETIMES_EXHAUSTED = st.builds(
    lambda values, delta: RdpCurve(np.array(values, dtype=np.int64), delta),
    st.lists(st.sampled_from([0, 1, 7, EXHAUSTED // 3, EXHAUSTED - 1, EXHAUSTED]), min_size=3, max_size=3),
    st.sampled_from([0, 1, EXHAUSTED // 3, EXHAUSTED]),
)


@given(st.lists(st.tuples(SOMETIMES_EXHAUSTED, st.integers(1, 4)), max_size=4), SOMETIMES_EXHAUSTED)
def test_subtraction_that_is_called_exact_is_exact(left: list[tuple[RdpCurve, int]], taken: RdpCurve) -> None:
    rest = RdpCurve.zero(3)
    for curve, count in left:
        rest = rest + curve.times(count)
    if is_exact(rest + taken, (curve for curve, _ in left)):
        assert without(rest + taken, taken) == rest


def test_exhausted_curve_is_not_subtracted() -> None:
    whole = RdpCurve(np.array([EXHAUSTED, 1], dtype=np.int64))
    assert not is_exact(whole, [RdpCurve(np.array([5, 1], dtype=np.int64))])
    assert not is_exact(RdpCurve(np.array([5, 1], dtype=np.int64), EXHAUSTED), ())
    with pytest.raises(ValueError, match="none of them negative"):
        without(RdpCurve(np.array([5, 1], dtype=np.int64)), RdpCurve(np.array([6, 1], dtype=np.int64)))
