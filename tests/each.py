"""One test of many cheap cases: to collect and to report a thousand takes longer than to run them."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def for_each(cases: Iterable[T], name: Callable[[T], str] = str) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Let one test take all cases, which need no fixture, and name those that fail."""
    kept = list(cases)

    def of(test: Callable[[T], None]) -> Callable[[], None]:
        def run() -> None:
            failed: list[Exception] = []
            for case in kept:
                try:
                    test(case)
                except Exception as error:  # noqa: BLE001 - it is raised with the others
                    error.add_note(f"The case: {name(case)}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(kept)} cases fail", failed)
            assert kept, "no case"

        run.__doc__ = test.__doc__
        return run

    return of
