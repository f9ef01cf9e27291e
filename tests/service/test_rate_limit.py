"""Buckets of tokens: what was asked for at once and in the long run never exceeds what flows in."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.errors import AuthenticationError, RateLimitedError
from app.service.auth import rate_limit
from app.service.auth.rate_limit import MOST_BUCKETS, UNAUTHENTICATED, TokenBuckets


class Clock:
    """A clock that stands until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rate_limit, "monotonic", clock)
    return clock


def _taken(bucket: TokenBuckets, times: int, name: str = "key") -> int:
    """How many of so many tokens are to be had now."""
    taken = 0
    for _ in range(times):
        with suppress(RateLimitedError):
            bucket.take(name)
            taken += 1
    return taken


def test_empty_bucket_says_when_the_next_token_comes(clock: Clock) -> None:
    bucket = TokenBuckets(0.1, 1, "Wait.")
    bucket.take("key")
    for passed, seconds in ((0.0, 10), (0.5, 10), (8.5, 1)):
        clock.now += passed
        with pytest.raises(RateLimitedError, match=r"Wait\.") as refused:
            bucket.take("key")
        assert refused.value.members == {"retry_after": seconds}
    clock.now += 1.0
    bucket.take("key")


@pytest.mark.usefixtures("clock")
def test_only_the_named_failure_costs_a_token() -> None:
    bucket = TokenBuckets(1, 2, "Wait.")
    for _ in range(9):
        with bucket.refund_unless(UNAUTHENTICATED, "here"):
            pass
        with pytest.raises(ZeroDivisionError), bucket.refund_unless(UNAUTHENTICATED, "here"):
            raise ZeroDivisionError
    for _ in range(2):
        with pytest.raises(AuthenticationError), bucket.refund_unless(UNAUTHENTICATED, "here"):
            raise AuthenticationError("Who?")
    with pytest.raises(RateLimitedError), bucket.refund_unless(UNAUTHENTICATED, "here"):
        pytest.fail("nothing is to be done without a token")


def test_flood_of_names_does_not_fill_the_memory_and_only_full_buckets_are_forgotten(clock: Clock) -> None:
    flooded, bucket = TokenBuckets(1, 1, "Wait."), TokenBuckets(1, 1, "Wait.")
    for number in range(2 * MOST_BUCKETS):
        flooded.take(str(number))
        assert len(flooded._full_at) <= MOST_BUCKETS
    for number in range(MOST_BUCKETS - 1):
        bucket.take(f"once {number}")
    clock.now += 0.9
    bucket.take("busy")
    clock.now += 0.2
    bucket.take("one more")
    assert len(bucket._full_at) == 2
    assert _taken(bucket, 1, "busy") == 0


@given(
    rate=st.floats(0.1, 1000),
    burst=st.integers(1, 50),
    asked=st.lists(st.tuples(st.floats(0, 2), st.integers(1, 60)), min_size=1, max_size=30),
)
def test_no_time_takes_more_than_burst_and_inflow(rate: float, burst: int, asked: list[tuple[float, int]]) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rate_limit, "monotonic", clock)
        bucket = TokenBuckets(rate, burst, "Wait.")
        tokens, before = float(burst), clock.now
        for passed, times in asked:
            clock.now += passed
            tokens = min(burst, tokens + (clock.now - before) * rate)
            before = clock.now
            taken = _taken(bucket, times)
            assert min(times, int(tokens - 1e-2)) <= taken <= tokens + 1e-2
            tokens -= taken
