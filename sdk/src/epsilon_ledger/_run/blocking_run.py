"""The run that an adapter may charge."""

from inspect import iscoroutinefunction
from typing import TypeVar

from epsilon_ledger._run.training_charge import TrainingCharge

R = TypeVar("R")


def require_blocking_run(run: R) -> R:
    """Require a run whose answer an adapter can wait for before each step, and return it.

    Raises:
        TypeError: it is an AsyncRun, the charge of a whole training, or no run.
    """
    authorize = getattr(run, "authorize", None)
    if iscoroutinefunction(authorize):
        raise TypeError("An adapter cannot wait for an AsyncRun: create the run with LedgerClient.")
    if isinstance(run, TrainingCharge):
        raise TypeError(
            f"{run!r} covers a whole training, and this adapter would charge each of its steps again. Give the run "
            "itself, or call authorize() of the charge in a loop of your own."
        )
    if isinstance(run, type) or not callable(authorize) or not hasattr(run, "id"):
        raise TypeError(
            f"run is {run!r}, but it must be a run of the ledger, from LedgerClient.create_run, get_run or resume_run."
        )
    return run
