"""Let decisions execute no SQL in any test of this process: a statement looks whether one has called it."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from sqlalchemy import Engine, event

from app.service.charging.decision import decide
from app.service.scheduling.holding import hold_priced

DECISIONS: tuple[Callable[..., Any], ...] = (decide, hold_priced)
"""Every decision of the service."""


def refusal_of_sql(*decisions: Callable[..., Any]) -> Callable[..., None]:
    """Make a listener to `before_cursor_execute` that fails within these functions."""
    watched = {id(each.__code__): each.__name__ for each in decisions}

    def refuse(*given: object) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            assert id(frame.f_code) not in watched, f"{watched[id(frame.f_code)]} executes {given[2]}"
            frame = frame.f_back

    return refuse


def enforce() -> None:
    """Watch every statement of every engine."""
    event.listen(Engine, "before_cursor_execute", refusal_of_sql(*DECISIONS))
