"""What a call takes of a processor, told from what else this process does."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

TRIES: Final = 3
"""One may hold a garbage collection of all that the process keeps, or the work of another thread; not all of them."""


def within(seconds: float, call: Callable[[], T], what: object = "") -> T:
    """Call, which may be repeated, until a call took at most so many seconds of a processor; return its result."""
    spent: list[float] = []
    while not spent or spent[-1] >= seconds:
        assert len(spent) < TRIES, (what, spent)
        begun = time.process_time()
        result = call()
        spent.append(time.process_time() - begun)
    return result
