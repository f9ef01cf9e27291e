"""Epsilon Ledger: a REST service that accounts for differential-privacy budgets."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Disable garbage collection in the block, and exempt its objects afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
