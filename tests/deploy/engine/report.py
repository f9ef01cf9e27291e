"""What a trial found."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

PATIENCE_SECONDS: Final = 120.0


@dataclass
class Report:
    """Findings of a trial, each printed when it is made.

    Args:
        failed: sentences that are not true.
    """

    failed: list[str] = field(default_factory=list)
    count: int = 0

    def title(self, words: str) -> None:
        """Begin a part."""
        print(f"\n{words}\n", flush=True)

    def check(self, sentence: str, *, holds: bool, found: object = "") -> None:
        """Note whether a sentence holds, and what was found."""
        self.count += 1
        if not holds:
            self.failed.append(sentence)
        print(f"  {'ok    ' if holds else 'FAILED'}  {sentence}{f': {found}' if found != '' else ''}", flush=True)

    def note(self, sentence: str, found: object = "") -> None:
        """Note what was reached: it would have been an error otherwise."""
        self.check(sentence, holds=True, found=found)


def wait_for(condition: Callable[[], bool], otherwise: str, seconds: float = PATIENCE_SECONDS) -> float:
    """Wait until something holds; return how long it took, in seconds.

    Raises:
        TimeoutError: it did not come to hold.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(otherwise)
        time.sleep(0.2)
    return time.monotonic() - began
