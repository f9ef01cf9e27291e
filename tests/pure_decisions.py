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


def enforce() -> None:
    """Watch every statement of every engine."""
    watched = {id(each.__code__): each.__name__ for each in DECISIONS}

    def refuse(*given: object) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            assert id(frame.f_code) not in watched, f"{watched[id(frame.f_code)]} executes {given[2]}"
            frame = frame.f_back

    event.listen(Engine, "before_cursor_execute", refuse)
