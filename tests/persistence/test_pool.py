"""The pool counts who uses a connection, who waits for one, and who waited in vain."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import TimeoutError  # noqa: A004 - of the pool

from app.persistence.pool import PoolUsage, WatchedPool, pool_usage

SIZE = 2
TIMEOUT_SECONDS = 0.2


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WatchedPool]:
    engine = create_engine(
        f"sqlite:///{tmp_path / 'pool.db'}",
        poolclass=WatchedPool,
        pool_size=SIZE,
        max_overflow=0,
        pool_timeout=TIMEOUT_SECONDS,
    )
    made = engine.pool
    assert isinstance(made, WatchedPool)
    yield made
    engine.dispose()


def test_a_pool_counts_what_is_used_and_what_is_idle(pool: WatchedPool) -> None:
    assert pool.usage() == PoolUsage(limit=SIZE)
    first, second = pool.connect(), pool.connect()
    assert pool.usage() == PoolUsage(used=2, limit=SIZE)
    first.close()
    assert pool.usage() == PoolUsage(used=1, idle=1, limit=SIZE)
    assert pool_usage(pool, kept=True) == PoolUsage(used=0, idle=2, limit=SIZE)
    second.close()


def test_who_waits_is_counted_until_they_have_a_connection(pool: WatchedPool) -> None:
    held = [pool.connect() for _ in range(SIZE)]
    waits = threading.Thread(target=lambda: pool.connect().close())
    waits.start()
    while pool.usage().pending == 0:
        assert waits.is_alive()
    held.pop().close()
    waits.join()
    assert pool.usage() == PoolUsage(used=1, idle=1, limit=SIZE)
    held.pop().close()


def test_who_waited_in_vain_is_counted(pool: WatchedPool) -> None:
    held = [pool.connect() for _ in range(SIZE)]
    for vain in (1, 2):
        with pytest.raises(TimeoutError):
            pool.connect()
        assert pool.usage() == PoolUsage(used=SIZE, limit=SIZE, timeouts=vain)
    for connection in held:
        connection.close()


def test_a_pool_that_keeps_nothing_has_no_limit() -> None:
    assert pool_usage(NullPool(lambda: None), kept=False) == PoolUsage()  # type: ignore[arg-type]
