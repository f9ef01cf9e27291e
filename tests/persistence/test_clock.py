"""The time is the database's, between two bounds, whatever the clock of this machine says."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.ledger.errors import LedgerUnavailableError
from app.persistence import clock as clocks
from app.persistence.clock import DRIFT, LONGEST_LEASE_SECONDS, OWN_SECONDS, Clock, Reading
from app.persistence.database import Database
from tests.conftest import need_postgresql, new_database

START = datetime(2026, 11, 22, 9, 0, tzinfo=UTC).timestamp()


class SimulatedTime:
    """A true time, a database's clock, this machine's, and what the machine counts."""

    def __init__(self) -> None:
        self.true = 0.0
        self.set_ahead = 0.0
        self.own_ahead = 0.0
        self.counts_too_much = 0.0
        self.there = 0.0
        self.back = 0.0

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
    return _counting(SimulatedTime(), monkeypatch)


def _counting(simulated: SimulatedTime, patch: pytest.MonkeyPatch) -> SimulatedTime:
    patch.setattr(clocks, "counted", simulated.counted)

    class Own(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Own":
            del tz
            return cls.fromtimestamp(START + simulated.true + simulated.own_ahead, UTC)

    patch.setattr(clocks, "datetime", Own)
    return simulated


MICROSECOND = 2e-6
"""Moments have no finer parts."""


@given(
    st.lists(st.tuples(st.floats(0, 60), st.floats(0, 3), st.floats(0, 3), st.floats(0, 60)), min_size=1, max_size=20),
    st.floats(-DRIFT / 2, DRIFT / 2),
    st.floats(-1e6, 1e6),
)
@example([(0.0, 0.0, 3.0, 0.0)], -DRIFT / 2, 0.0)  # the whole way is back, and this machine counts too little of it
@example([(0.0, 3.0, 0.0, 60.0)], DRIFT / 2, 0.0)
def test_the_time_lies_between_the_bounds_however_slow_the_way_and_wrong_the_own_clock(
    looks: list[tuple[float, float, float, float]], counts_too_much: float, own_ahead: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        simulated = _counting(SimulatedTime(), patch)
        simulated.counts_too_much, simulated.own_ahead = counts_too_much, own_ahead
        clock = Clock(simulated.read)
        for pause, simulated.there, simulated.back, later in looks:
            simulated.true += pause
            clock.sample()
            simulated.true += later
            moment = clock.moment()
            assert moment.earliest.timestamp() - MICROSECOND <= simulated.database()
            assert simulated.database() <= moment.latest.timestamp() + MICROSECOND


def test_readings_of_some_milliseconds_bound_it_to_some_milliseconds(simulated: SimulatedTime) -> None:
    clock = Clock(simulated.read)
    simulated.there = simulated.back = 0.0005
    for _ in range(100):
        simulated.true += 5
        clock.sample()
    simulated.true += 5
    moment = clock.moment()
    assert moment.latest - moment.earliest < timedelta(seconds=2 * 5 * DRIFT + 0.002)


def test_one_slow_reading_loosens_nothing(simulated: SimulatedTime) -> None:
    clock = Clock(simulated.read)
    clock.sample()
    simulated.there = simulated.back = 2.0
    clock.sample()
    moment = clock.moment()
    assert moment.latest - moment.earliest < timedelta(seconds=0.01)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_jump_of_the_own_clock_between_two_readings_moves_nothing(simulated: SimulatedTime, jump: float) -> None:
    clock = Clock(simulated.read)
    clock.sample()
    before = clock.now()
    simulated.own_ahead = jump
    assert clock.now() == before
    assert clock.own_is_ahead() == pytest.approx(jump)


def test_a_databases_clock_that_was_set_ahead_is_followed_but_no_lease_of_before_runs_out_by_it(
    simulated: SimulatedTime,
) -> None:
    clock = Clock(simulated.read)
    clock.sample()
    simulated.set_ahead = 3600
    simulated.true += 5
    clock.sample()
    moment = clock.moment()
    assert moment.latest.timestamp() == pytest.approx(simulated.database(), abs=0.1)
    assert moment.earliest.timestamp() == pytest.approx(simulated.database() - 3600, abs=0.1)
    simulated.true += LONGEST_LEASE_SECONDS
    clock.sample()
    assert clock.moment().earliest.timestamp() == pytest.approx(simulated.database(), abs=0.1)


def test_of_several_jumps_the_leases_of_the_first_hold(simulated: SimulatedTime) -> None:
    clock = Clock(simulated.read)
    for _ in range(3):
        clock.sample()
        simulated.set_ahead += 600
        simulated.true += 5
    clock.sample()
    assert clock.moment().earliest.timestamp() == pytest.approx(simulated.database() - 1800, abs=0.1)


def test_a_databases_clock_that_was_set_back_is_followed(simulated: SimulatedTime) -> None:
    clock = Clock(simulated.read)
    clock.sample()
    simulated.set_ahead = -3600
    clock.sample()
    moment = clock.moment()
    assert moment.latest.timestamp() == pytest.approx(simulated.database(), abs=0.1)
    assert moment.earliest <= moment.latest


def test_a_clock_that_was_never_read_is_asked_or_said_to_be_unknown(simulated: SimulatedTime) -> None:
    clock = Clock(simulated.read)
    assert clock.own_is_ahead() is None
    with pytest.raises(LedgerUnavailableError, match="not been read yet"):
        clock.moment(wait=False)
    assert clock.now().timestamp() == pytest.approx(simulated.database())
    assert clock.moment(wait=False).latest == clock.now()


def test_a_file_goes_by_the_machines_clock_and_no_lease_runs_out_when_that_is_set_ahead(
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


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    need_postgresql()
    with new_database("postgresql", tmp_path_factory.mktemp("unused")) as url:
        opened = Database(url)
        yield opened
        opened.dispose()


@pytest.mark.postgresql
@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_on_a_server_the_time_is_the_servers(server: Database, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    class Off(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            del tz
            return datetime.now(UTC) + timedelta(seconds=jump)

    monkeypatch.setattr(clocks, "datetime", Off)
    # On this machine both are one clock: what the server says lies between two looks at the own one.
    before, moment, after = datetime.now(UTC), server.clock.moment(), datetime.now(UTC)
    assert before <= moment.latest
    assert moment.earliest <= after
    ahead = server.clock.own_is_ahead()
    assert ahead is not None
    assert ahead == pytest.approx(jump, abs=60)
