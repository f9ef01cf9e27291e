"""Waiting for a reservation until the ledger grants it, without I/O."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn, TypeAlias

from epsilon_ledger._run.step_requests import foreign_reservation_error
from epsilon_ledger._wire.endpoints.reservations import cancel_reservation, get_reservation
from epsilon_ledger._wire.endpoints.runs import get_run
from epsilon_ledger._wire.errors import (
    LedgerError,
    LedgerUnavailableError,
    ReservationNotGrantedError,
    UnexpectedResponseError,
)
from epsilon_ledger._wire.members import wire_timestamp
from epsilon_ledger._wire.models import RunState
from epsilon_ledger._wire.problem_errors import ReservationClosedError, ReservationStateConflictError
from epsilon_ledger._wire.requests import Pause, Request, RequestFlow, path, post
from epsilon_ledger._wire.reservation_models import Reservation, Waiting

OnWait: TypeAlias = Callable[[Waiting], object]
"""Called with what a reservation waits for, first and whenever that changes."""

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 15.0
"""Seconds between two looks whether a reservation is granted; each is half as long again as the last one."""

_GROWTH: Final = 1.5
_SPREAD: Final = 0.2
"""Random share by which a pause differs, so that trainers do not look at the same time."""

_LOOKS_IN_LEASE: Final = 4
"""A granted reservation is returned if it is not claimed within its lease: there are so many looks in it at least."""

_LOGGER: Final = logging.getLogger("epsilon_ledger.waiting")


def wait_end(wait: timedelta | None) -> str | None:
    """Compute until when a reservation waits, by this machine's clock; None: it does not wait.

    Raises:
        TypeError: `wait` is no timedelta.
        ValueError: it is not positive.
    """
    if wait is None:
        return None
    if not isinstance(wait, timedelta):
        raise TypeError(f"wait must be a timedelta, such as timedelta(hours=12), not {wait!r}.")
    if wait <= timedelta(0):
        raise ValueError(f"wait must be longer than nothing, not {wait}.")
    return wire_timestamp("wait", datetime.now(UTC) + wait)


class ReservationWait:
    """The wait of one process for the grant of a reservation.

    Args:
        run: id of the run.
        reservation: id of the waiting reservation.
        on_wait: called with what it waits for, first and whenever that changes; None: the log has it.
    """

    def __init__(self, run: str, reservation: str, on_wait: OnWait | None) -> None:
        self._run = run
        self._id = reservation
        self._on_wait = on_wait
        self._seen: Reservation | None = None
        self._told: Waiting | None = None
        self._claim: Request | None = None

    def claim(self) -> RequestFlow[tuple[RunState, Reservation]]:
        """Wait until the reservation is granted, and claim it for this process.

        A ledger that does not answer is asked again until the reservation would expire.

        Returns:
            The run's state, and the reservation.

        Raises:
            ReservationNotGrantedError: it has waited in vain, was cancelled, or its lease has ended.
            StepsAlreadyTakenError: another process has claimed it.
            LedgerError: any other failure; the reservation goes on waiting.
        """
        pause = _FIRST_PAUSE
        while True:
            try:
                claimed = yield from self._look()
            except LedgerUnavailableError as error:
                if self._seen is None or self._seen.expires_at <= datetime.now(UTC):
                    raise
                _LOGGER.warning("No answer about %s of %s, which is looked at again: %s", self._id, self._run, error)
                claimed = None
            if claimed is not None:
                return claimed
            yield Pause(pause * (1 - _SPREAD), pause * (1 + _SPREAD))
            longest = _LONGEST_PAUSE if self._seen is None else self._seen.lease_seconds / _LOOKS_IN_LEASE
            pause = min(pause * _GROWTH, longest, _LONGEST_PAUSE)

    def claim_or_give_up(self, release: Request) -> RequestFlow[tuple[RunState, Reservation]]:
        """As `claim`, and give up if anything but the ledger ends the wait, Ctrl-C or `on_wait` for instance.

        The ledger is asked once to cancel the reservation, or to `release` it if it is granted meanwhile.
        """
        try:
            return (yield from self.claim())
        except LedgerError as error:
            if not isinstance(error, ReservationNotGrantedError):
                error.add_note(
                    f"The reservation {self._id} may go on waiting: "
                    f"get_run({self._run!r}).wait_for_reservation() waits on for it, "
                    f"and cancel_reservation({self._id!r}, reason=...) ends it."
                )
            raise
        except GeneratorExit:  # nothing can be sent any more
            raise
        except BaseException as error:
            yield from self._give_up(error, release)
            raise

    def _look(self) -> RequestFlow[tuple[RunState, Reservation] | None]:
        """Look at the reservation, and claim it if it is granted; None: it waits."""
        found = yield from get_reservation(self._id).flow()
        before, self._seen = self._seen, found
        if found.status == "active":
            return (yield from self._claim_granted(found))
        if found.status != "waiting":
            self._raise_not_granted(found.status)
        if found.waiting is not None and found.waiting != self._told:
            self._told = found.waiting
            self._tell(found.waiting, first=before is None)
        return None

    def _claim_granted(self, granted: Reservation) -> RequestFlow[tuple[RunState, Reservation] | None]:
        """Claim a granted reservation; None: the run does not have it any more."""
        state = yield from get_run(self._run).flow()
        unclaimed = granted.granted_at is not None and granted.claimed_at is None and not granted.steps_authorized
        if not unclaimed and self._claim is None:
            raise foreign_reservation_error(self._run, self._id, state.next_step)
        if state.reservation != self._id:
            return None
        # The last request, because a process that does not know whether it has claimed the reservation cannot go on
        # with it.
        self._claim = self._claim or post(f"{path('reservations', self._id)}/claim", {})
        try:
            response = yield self._claim
        except ReservationClosedError as error:
            self._raise_not_granted(error.reservation_status)
        claimed = response.read(Reservation)
        if (claimed.id, claimed.status) != (self._id, "active"):
            raise UnexpectedResponseError(
                f"The ledger's answer does not grant the reservation {self._id} of {self._run}: release nothing.",
                status=response.status,
            )
        return state, claimed

    def _tell(self, waiting: Waiting, *, first: bool) -> None:
        if self._on_wait is not None:
            self._on_wait(waiting)
            return
        # The first line is seen without any configuration of logging: the program seems to stand still.
        level = logging.WARNING if first else logging.INFO
        _LOGGER.log(level, "%s waits for its reservation %s: %s", self._run, self._id, waiting)

    def _raise_not_granted(self, status: str) -> NoReturn:
        lacked = "" if self._told is None else f" At last: {self._told}."
        until = None if self._seen is None else self._seen.wait_until
        raise ReservationNotGrantedError(
            f"The reservation {self._id} of {self._run} was not granted to this process: it is {status}.{lacked} "
            "Nothing is reserved for it; create a run that reserves other steps, or with a longer `wait`.",
            run=self._run,
            reservation=self._id,
            reservation_status=status,
            wait_until=until,
            waiting=self._told,
        )

    def _give_up(self, reason: BaseException, release: Request) -> RequestFlow[None]:
        """Cancel the reservation, or release it, with one attempt each; a failure is noted."""
        cancel = cancel_reservation(self._id, reason=f"The trainer stopped waiting ({type(reason).__name__}).").request
        cancel.max_attempts = release.max_attempts = 1
        try:
            try:
                yield cancel
            except ReservationStateConflictError:
                yield release
        except LedgerError as error:
            reason.add_note(
                f"The ledger did not confirm that the reservation {self._id} of {self._run} is given up: {error}"
            )
