"""The service, broken by what its environment says: `python -m tests.reliability.broken_server serve --port N`.

FEW_FILES: it may open so many files, as by `ulimit -n`. CLOCK: its clock is ahead by so many seconds. DEATH: a file
that may say `before insert 7`: from then on, the process is killed in the seventh group of steps that it gets to save.
"""

import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

from app import cli, main  # noqa: F401 - the clock is set in all of their modules
from app.service.charging import groups, saving


def set_clock(ahead: Callable[[], int], put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let every module of the service read a clock that is ahead by so many seconds."""

    class SetClock(datetime):
        """The time, as far off as was asked for."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp((datetime.now(tz) + timedelta(seconds=ahead())).timestamp(), tz)

    for name, module in list(sys.modules.items()):
        if name.startswith("app.") and getattr(module, "datetime", None) is datetime:
            put(module, "datetime", SetClock)


def die_at(file: Path) -> None:
    """End this process where a file says, and remove it: the next process is to live."""
    save, remember = saving.save, saving.remember
    reached = Counter[str]()

    def reach(place: str) -> None:
        if file.exists():
            reached[place] += 1
            wanted, _, times = file.read_text().rpartition(" ")
            if place == wanted and reached[place] >= int(times):
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

    def saves(*given: Any) -> None:  # noqa: ANN401 - passed on
        reach("before insert")
        save(*given)
        reach("before commit")

    def remembers(*given: Any) -> None:  # noqa: ANN401 - passed on
        reach("after commit")
        remember(*given)

    vars(groups).update(save=saves, remember=remembers)


if __name__ == "__main__":
    if few := int(os.environ.get("FEW_FILES", "0")):
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
    if ahead := int(os.environ.get("CLOCK", "0")):
        set_clock(lambda: ahead)
    if death := os.environ.get("DEATH"):
        die_at(Path(death))
    cli.main()
