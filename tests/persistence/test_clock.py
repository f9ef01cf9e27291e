"""The time is the database's, between two bounds, whatever the clock of this machine says."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.ledger.errors import LedgerUnavailableError
from app.persistence import clock as clocks
from app.persistence.clock import DRIFT, LONGEST_LEASE_SECONDS, OWN_SECONDS, Clock, Reading
from app.persistence.database import Database

START = datetime(2026, 11, 22, 9, 0, tzinfo=UTC).timestamp()


class SimulatedTime:
    """A true time, a database's clock, this machine's, and its counter, which replace those of the module."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.true = self.set_ahead = self.own_ahead = self.counts_too_much = self.there = self.back = 0.0
        simulated = self

        class Own(datetime):
            @classmethod
            def now(cls, tz: object = None) -> "Own":
                del tz
                return cls.fromtimestamp(START + simulated.true + simulated.own_ahead, UTC)

        patch.setattr(clocks, "counted", self.counted)
        patch.setattr(clocks, "datetime", Own)

    def database(self) -> float:
        return START + self.true + self.set_ahead

    def counted(self) -> float:
        return self.true * (1 + self.counts_too_much)

    def read(self) -> Reading:
        began = self.counted()
        self.true += self.there
        answer = self.database()
        self.true += self.back
        return Reading(began, datetime.fromtimestamp(answer, UTC), self.counted())


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    return SimulatedTime(monkeypatch)


@pytest.fixture
def clock(simulated: SimulatedTime) -> Clock:
    """Of a database, read once."""
    made = Clock(simulated.read)
    made.sample()
    return made


MICROSECOND = 2e-6
"""Moments have no finer parts."""


@given(
    st.lists(st.tuples(st.floats(0, 60), st.floats(0, 3), st.floats(0, 3), st.floats(0, 60)), min_size=1, max_size=20),
    st.floats(-DRIFT / 2, DRIFT / 2),
    st.floats(-1e6, 1e6),
)
@example([(0.0, 0.0, 3.0, 0.0)], -DRIFT / 2, 0.0)  # the whole way is back, and this machine counts too little of it
@example([(0.0, 3.0, 0.0, 60.0)], DRIFT / 2, 0.0)
def test_time_lies_between_the_bounds_however_wrong_the_own_clock_is(
    looks: list[tuple[float, float, float, float]], counts_too_much: float, own_ahead: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        simulated = SimulatedTime(patch)
        simulated.counts_too_much, simulated.own_ahead = counts_too_much, own_ahead
        clock = Clock(simulated.read)
        for pause, simulated.there, simulated.back, later in looks:
            simulated.true += pause
            clock.sample()
            simulated.true += later
            moment = clock.moment()
            assert moment.earliest.timestamp() - MICROSECOND <= simulated.database()
            assert simulated.database() <= moment.latest.timestamp() + MICROSECOND


def test_bounds_stay_close_when_one_of_many_readings_is_slow(simulated: SimulatedTime, clock: Clock) -> None:
    simulated.there = simulated.back = 0.0005
    for _ in range(100):
        simulated.true += 5
        clock.sample()
    simulated.there = simulated.back = 2.0
    clock.sample()
    simulated.true += 1
    moment = clock.moment()
    assert moment.latest - moment.earliest < timedelta(seconds=2 * 5 * DRIFT + 0.002)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_jump_of_the_own_clock_moves_nothing(simulated: SimulatedTime, clock: Clock, jump: float) -> None:
    before = clock.now()
    simulated.own_ahead = jump
    assert clock.now() == before
    assert clock.own_is_ahead() == pytest.approx(jump)


@pytest.mark.parametrize("jumps", [1, 3])
def test_lease_does_not_end_when_the_clock_of_the_database_is_set_ahead(
    simulated: SimulatedTime, clock: Clock, jumps: int
) -> None:
    for _ in range(jumps):
        simulated.set_ahead += 600
        simulated.true += 5
        clock.sample()
    moment = clock.moment()
    assert moment.latest.timestamp() == pytest.approx(simulated.database(), abs=0.1)
    assert moment.earliest.timestamp() == pytest.approx(simulated.database() - 600 * jumps, abs=0.1)
    simulated.true += LONGEST_LEASE_SECONDS
    clock.sample()
    assert clock.moment().earliest.timestamp() == pytest.approx(simulated.database(), abs=0.1)


def test_clock_of_the_database_is_followed_when_it_is_set_back(simulated: SimulatedTime, clock: Clock) -> None:
    simulated.set_ahead = -3600
    clock.sample()
    moment = clock.moment()
    assert moment.latest.timestamp() == pytest.approx(simulated.database(), abs=0.1)
    assert moment.earliest <= moment.latest


def test_clock_is_asked_or_unknown_when_it_was_never_read(simulated: SimulatedTime) -> None:
    clock = Clock(simulated.read)
    assert clock.own_is_ahead() is None
    with pytest.raises(LedgerUnavailableError, match="not been read yet"):
        clock.moment(wait=False)
    assert clock.now().timestamp() == pytest.approx(simulated.database())
    assert clock.moment(wait=False).latest == clock.now()


def test_file_goes_by_the_own_clock_and_no_lease_ends_when_that_is_set_ahead(
    simulated: SimulatedTime,
) -> None:
    clock = Clock(None)
    assert clock.moment(wait=False).latest.timestamp() == pytest.approx(START, abs=0.001)
    simulated.own_ahead = 3600
    assert clock.moment().latest.timestamp() == pytest.approx(START, abs=0.001)
    simulated.true += 2 * OWN_SECONDS
    moment = clock.moment()
    assert moment.latest.timestamp() == pytest.approx(START + 3600, abs=0.003)
    assert moment.earliest.timestamp() == pytest.approx(START, abs=0.003)
    assert clock.own_is_ahead() == 0


@pytest.mark.postgresql
def test_time_is_the_servers_when_the_own_clock_is_wrong(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, simulated = Database(database_url), SimulatedTime(monkeypatch)
    simulated.own_ahead = 3600 + datetime.now(UTC).timestamp() - START
    monkeypatch.setattr(clocks, "counted", time.monotonic)
    # On this machine both are one clock: what the server says lies between two looks at the own one.
    before, moment, after = datetime.now(UTC), server.clock.moment(), datetime.now(UTC)
    assert before <= moment.latest
    assert moment.earliest <= after
    assert server.clock.own_is_ahead() == pytest.approx(3600, abs=60)
    server.dispose()
