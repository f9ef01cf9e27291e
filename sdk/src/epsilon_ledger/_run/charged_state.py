"""The state of a run between the ledger's answers, which each charge moves on."""

from dataclasses import replace

from epsilon_ledger._wire.models import RunState, StepAuthorization


class ChargedState:
    """The state that the ledger gave last, and the latest charge since.

    Both are put together when the state is asked for: its many members would be copied in every step of a training.
    Threads may ask for it while another one charges.

    Args:
        given: by the ledger.
    """

    def __init__(self, given: RunState) -> None:
        self._known: tuple[RunState, StepAuthorization | None] = given, None
        self._merged: tuple[StepAuthorization | None, RunState] = None, given

    @property
    def id(self) -> str:
        """The run's id."""
        return self._known[0].id

    @property
    def attempt(self) -> int:
        """This trainer's attempt."""
        return self._known[0].attempt

    @property
    def reservation(self) -> str | None:
        """The active reservation, if any."""
        return self._known[0].reservation

    @property
    def next_step(self) -> int:
        """Number of the first step that was not charged."""
        given, charge = self._known
        return given.next_step if charge is None else charge.next_step

    @property
    def current(self) -> RunState:
        """The state after the charge."""
        given, charge = self._known
        if charge is None:
            return given
        merged = self._merged
        if merged[0] is not charge:
            merged = self._merged = charge, _after(given, charge)
        return merged[1]

    def replace(self, given: RunState) -> None:
        """Store a state that has all charges."""
        self._known = given, None

    def charge(self, charge: StepAuthorization) -> None:
        """Store a charge."""
        if charge.overdrawn:  # the run stays so, whatever a later charge says of it
            self._known = _after(self._known[0], charge), None
        else:
            self._known = self._known[0], charge


def _after(given: RunState, charge: StepAuthorization) -> RunState:
    return replace(
        given,
        next_step=charge.next_step,
        epsilon=charge.epsilon,
        delta=charge.delta,
        used=charge.used,
        steps_remaining=charge.steps_remaining,
        binding_account=charge.binding_account,
        binding_account_path=charge.binding_account_path,
        status="overdrawn" if charge.overdrawn else given.status,
    )
