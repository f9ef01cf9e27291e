"""What stands between the noise and the update of an Opacus optimizer."""

import inspect
import pickle
from collections.abc import Callable
from typing import cast

import torch
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer

from epsilon_ledger import Event, LedgerError, RequestInDoubtError, Run, Trial
from epsilon_ledger._opacus.steps import StepReader, publish_fixed_fraction


class LedgerHook:
    """What an attached optimizer calls between its noise and its update; `attach` makes it.

    Args:
        run: who is charged; None in a distributed worker that is told by rank 0.
        read: from the optimizer to the event of its step; None in such a worker.
        then: the hook that was there before, called after the step was admitted.
    """

    def __init__(
        self,
        run: Run | Trial | None,
        read: Callable[[DPOptimizer], Event] | None,
        then: Callable[[DPOptimizer], None] | None,
    ) -> None:
        self.run = run
        self.read = read
        self.then = then
        self.event: Event | None = None

    def __call__(self, optimizer: DPOptimizer) -> None:
        """Ask for the step; when this returns, the parameters may move.

        Args:
            optimizer: its gradients are noisy, its parameters have not moved.

        Raises:
            LedgerError: the step was not admitted; its gradients are gone.
        """
        try:
            self._ask(optimizer)
        except BaseException:
            for parameter in optimizer.params:
                parameter.grad = parameter.grad_sample = parameter.summed_grad = None
            raise
        if type(optimizer) is AdaClipDPOptimizer and isinstance(self.read, StepReader):
            publish_fixed_fraction(optimizer)
        if self.then is not None:
            self.then(optimizer)

    def chain(self, hook: Callable[[DPOptimizer], None]) -> None:
        """Take a hook that is attached later and would otherwise replace this one; `attach_step_hook` leads here.

        Args:
            hook: called after the ledger admitted the step, instead of the one before.
        """
        self.then = hook

    def _ask(self, optimizer: DPOptimizer) -> None:
        if workers(optimizer) == 1:
            self._authorize(optimizer)
            return
        answer: list[bytes | None] = [None]
        try:
            if optimizer.rank == 0:
                self._authorize(optimizer)
        except BaseException as error:
            answer = [_pickled(error)]
            raise
        finally:
            # The others wait for it, whatever happened here.
            torch.distributed.broadcast_object_list(answer, src=0)
        if answer[0] is not None:
            raise pickle.loads(answer[0])  # noqa: S301 - from rank 0 of this very training

    def _authorize(self, optimizer: DPOptimizer) -> None:
        assert self.run is not None
        assert self.read is not None
        event = self.read(optimizer)
        try:
            self.run.authorize(event=event)
        except RequestInDoubtError:
            # The step before was not answered, and its noise was another one: it is paid for and was not released.
            cast("Run", self.run).settle()
            self.run.authorize(event=event)
        self.event = event


def checked_run(run: Run | Trial) -> Run | Trial:
    """Let a run pass that answers before the optimizer goes on.

    Args:
        run: what the trainer gave.

    Returns:
        The same.

    Raises:
        TypeError: it is an AsyncRun, whose answers nobody would wait for.
    """
    if inspect.iscoroutinefunction(run.authorize):
        raise TypeError("An optimizer's step cannot wait for an AsyncRun: register the run with LedgerClient.")
    return run


def workers(optimizer: DPOptimizer) -> int:
    """Count the processes that take an optimizer's steps together.

    Args:
        optimizer: one of Opacus'.

    Returns:
        At least 1.
    """
    return int(getattr(optimizer, "world_size", 1))


def _pickled(error: BaseException) -> bytes:
    try:
        return pickle.dumps(error)
    except Exception:  # noqa: BLE001 - whatever an exception may hold, the other ranks must hear of it
        return pickle.dumps(LedgerError(f"{type(error).__name__} on rank 0: {error}"))
