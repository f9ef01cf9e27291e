"""Let decisions execute no SQL in any test of this process; `tests/conftest.py` wraps them."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from sqlalchemy import Engine, event

from app.service.charging import groups
from app.service.scheduling import arrivals, grants

P = ParamSpec("P")
T = TypeVar("T")

CALLED_IN = ((groups, "decide"), (arrivals, "hold_priced"), (grants, "hold_priced"))
"""Every decision of the service, where it is called."""

_here = threading.local()


def without_sql(decide: Callable[P, T]) -> Callable[P, T]:
    """Wrap a decision, so that a statement within it fails."""

    @wraps(decide)
    def alone(*given: P.args, **named: P.kwargs) -> T:
        _here.decision = decide.__name__
        try:
            return decide(*given, **named)
        finally:
            _here.decision = None

    return alone


def enforce() -> None:
    """Wrap every decision of the service."""
    event.listen(Engine, "before_cursor_execute", _refuse)
    for module, name in CALLED_IN:
        vars(module)[name] = without_sql(vars(module)[name])


def _refuse(*given: object) -> None:
    decision = getattr(_here, "decision", None)
    assert decision is None, f"{decision} executes {given[2]}"
