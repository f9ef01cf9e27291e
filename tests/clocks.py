"""A database's clock that a test sets."""

from collections.abc import Callable
from datetime import datetime

import pytest

from app.persistence.clock import Clock, Moment


def stand_at(patch: pytest.MonkeyPatch, now: Callable[[], datetime]) -> None:
    """Let the clock of every database in this process say what a function does."""
    patch.setattr(Clock, "moment", lambda *_, **__: Moment(now(), now()))
