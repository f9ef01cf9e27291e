"""What stands between the noise and the update of an Opacus optimizer."""

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from opacus.accountants import IAccountant
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer

from epsilon_ledger import Event, RequestInDoubtError, Run, Trial, composed, poisson_sampled, self_composed
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.guard import guard_of
from epsilon_ledger._opacus.ranks import hear, tell, workers
from epsilon_ledger._opacus.samples import Draw
from epsilon_ledger._opacus.steps import StepReader, publish_fixed_fraction

_CHARGED_TO_RUN: Final[Counter[str]] = Counter()
_COUNTED_BY_OPACUS: Final[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()


class LedgerHook:
    """What an attached optimizer calls between its noise and its update; `attach` makes it.

    Args:
        run: who is charged; None in a distributed worker that is told by rank 0.
        read: from the optimizer to what its step does to the sample; the user's own function tells the whole event.
        members: the optimizers that step the same samples, and are charged with them.
        stated: the sampling probability that the user states, or None.
        releases: how often each member steps one sample.
        then: the hook that was there before, called after the step was admitted.
    """

    def __init__(
        self,
        run: Run | Trial | None,
        read: Callable[[DPOptimizer], Event],
        members: Sequence[DPOptimizer],
        *,
        stated: float | None,
        releases: int,
        then: Callable[[DPOptimizer], None] | None,
    ) -> None:
        self.run = run
        self.read = read
        self.event: Event | None = None
        """What was charged last."""
        self.charged = False
        """Whether the release at hand was charged, and not a former one for both."""
        self._members = tuple(members)
        self._stated = stated
        self._releases = releases
        self.chain(then)

    def __call__(self, optimizer: DPOptimizer) -> None:
        """Ask for the step; when this returns, the parameters may move.

        Args:
            optimizer: its gradients are noisy, its parameters have not moved.

        Raises:
            LedgerError: the step was not admitted.
        """
        self._ask(optimizer)
        if type(optimizer) is AdaClipDPOptimizer and isinstance(self.read, StepReader):
            publish_fixed_fraction(optimizer)
        if self.then is not None:
            self.then(optimizer)
        if self._accountant is not None:
            _COUNTED_BY_OPACUS[self._accountant] = _COUNTED_BY_OPACUS.get(self._accountant, 0) + 1

    def chain(self, hook: Callable[[DPOptimizer], None] | None) -> None:
        """Take a hook that is attached later and would otherwise replace this one; `attach_step_hook` leads here.

        Args:
            hook: called after the ledger admitted the step, instead of the one before.
        """
        self.then = hook
        self._accountant = accountant_of(hook)

    def _ask(self, optimizer: DPOptimizer) -> None:
        if workers(optimizer) == 1:
            self._pay(optimizer)
            return
        if optimizer.rank > 0:
            hear()
            self._pay(optimizer)
            return
        error: BaseException | None = None
        try:
            self._pay(optimizer)
        except BaseException as found:
            error = found
            raise
        finally:
            # The others wait for it, whatever happened here.
            tell(error)

    def _pay(self, optimizer: DPOptimizer) -> None:
        """Charge the step, unless the charge of its sample covers it."""
        step = self.read(optimizer)
        guard = guard_of(optimizer)
        if guard.trusted or not guard.amplified:
            self._authorize(step)
        else:
            assert guard.draw is not None, "the guard let a step through that is of no sample"
            assert guard.source is not None
            with guard.source.lock:
                self._use_up(optimizer, guard.draw, step)

    def _use_up(self, optimizer: DPOptimizer, draw: Draw, step: Event) -> None:
        """Charge all releases of a sample before the first one, and check off this one."""
        self.charged = False
        if draw.unreleased is None:
            steps = {member: [mechanism_of(member)] * self._releases for member in self._members}
            probability = self._probability(draw)
            together = _together([event for events in steps.values() for event in events])
            self._authorize(together if probability == 1.0 else poisson_sampled(probability, together))
            draw.unreleased = steps
        left = draw.unreleased.get(optimizer)
        if not left:
            raise UnsupportedTrainingError(
                "This sample was released meanwhile, by another thread: nothing is released."
            )
        if left[0] != step:
            raise UnsupportedTrainingError(
                f"This step is {step}, but when the sample was charged, before its first release, it was to be "
                f"{left[0]}. Move noise and clipping norms only between samples, after the last release of one."
            )
        left.pop(0)

    def _probability(self, draw: Draw) -> float:
        known, stated = draw.sampling_probability, self._stated
        if known is not None and stated is not None and stated < known:
            raise UnsupportedTrainingError(
                f"sampling_probability={stated:g} was stated, but this sample was drawn with {known:g}. Leave "
                f"sampling_probability out: the loader's sampler says what it draws with."
            )
        probability = known if stated is None else stated
        assert probability is not None, "attach has looked for it"
        return probability

    def _authorize(self, event: Event) -> None:
        if self.run is not None:
            try:
                self.run.authorize(event=event)
            except RequestInDoubtError:
                # The step before was not answered, and its noise was another one: it is paid for and was not released.
                cast("Run", self.run).settle()
                self.run.authorize(event=event)
            _CHARGED_TO_RUN[self.run.id] += 1
        self.event, self.charged = event, True


def mechanism_of(optimizer: DPOptimizer) -> Event:
    """Read what an attached optimizer's next step does to its sample.

    Args:
        optimizer: one that is attached.

    Returns:
        The event, without the sampling.
    """
    read = optimizer.step_hook.read
    event: Event = read.mechanism(optimizer) if isinstance(read, StepReader) else read(optimizer)
    return event


def accountant_of(hook: Any) -> IAccountant | None:  # noqa: ANN401 - any hook
    """Find the accountant that a hook of Opacus counts for.

    Args:
        hook: an optimizer's, or None.

    Returns:
        The accountant; None: it is another hook.
    """
    owner = inspect.getclosurevars(hook).nonlocals.get("self") if inspect.isfunction(hook) else None
    return owner if isinstance(owner, IAccountant) else None


def uncharged_steps(accountant: IAccountant, run: Run | Trial) -> int:
    """Count the steps in an accountant's history for which nobody can have been charged.

    A run that was resumed has admitted the steps of earlier processes, which a checkpoint's history shows, too.

    Args:
        accountant: Opacus' own.
        run: who will be charged.

    Returns:
        At least 0.
    """
    seen = sum(int(steps) for *_, steps in accountant.history) - _COUNTED_BY_OPACUS.get(accountant, 0)
    return max(0, seen - max(0, run.next_step - _CHARGED_TO_RUN[run.id]))


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


def _together(events: list[Event]) -> Event:
    """Describe several events on one sample."""
    if len(events) == 1:
        return events[0]
    return self_composed(events[0], len(events)) if all(event == events[0] for event in events) else composed(events)
