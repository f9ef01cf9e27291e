"""The hook between noise and update of an attached optimizer."""

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
from epsilon_ledger._opacus.ranks import broadcast_result, receive_result, workers
from epsilon_ledger._opacus.samples import Draw
from epsilon_ledger._opacus.steps import StepReader, publish_fixed_fraction, require_finite

_CHARGED_TO_RUN: Final[Counter[str]] = Counter()
_STEPS_COUNTED_BY_OPACUS: Final[weakref.WeakKeyDictionary[Any, Counter[None]]] = weakref.WeakKeyDictionary()


class LedgerHook:
    """Step hook of an attached optimizer; created by `attach`.

    Args:
        run: to charge; None in a distributed worker, to which rank 0 sends the result.
        read: returns an optimizer's step as an event on its sample; a user's function returns the whole event.
        members: the optimizers that step the same samples and are charged together.
        stated: sampling probability given by the user, or None.
        releases: steps of each member on one sample.
        then: the previous hook, called after the step was admitted.
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
        self._run_id = "" if run is None else run.id
        self.read = read
        self.event: Event | None = None
        """The event charged last."""
        self.charged = False
        """Whether this release made the charge, rather than an earlier one of the same sample."""
        self._members = tuple(members)
        self._alone = all(workers(member) == 1 for member in members)
        self._stated = stated
        self._last_sample: tuple[float, Event, Event] | None = None
        self._releases = releases
        self._single = len(self._members) == 1 and releases == 1
        self.chain(then)

    def __call__(self, optimizer: DPOptimizer) -> None:
        """Authorize the step of an optimizer with noisy gradients and unmoved parameters.

        Raises:
            LedgerError: the step was not admitted.
        """
        require_finite(optimizer)
        if self._alone:
            self._authorize_step(optimizer)
        else:
            self._authorize_on_all_ranks(optimizer)
        guard_of(optimizer).authorized = True
        if type(optimizer) is AdaClipDPOptimizer and isinstance(self.read, StepReader):
            publish_fixed_fraction(optimizer)
        if self.then is not None:
            self.then(optimizer)
        if self._counted is not None:
            self._counted[None] += 1

    def chain(self, hook: Callable[[DPOptimizer], None] | None) -> None:
        """Chain a hook that is attached later by `attach_step_hook` instead of being replaced by it."""
        self.then = hook
        accountant = accountant_of(hook)
        self._record = getattr(accountant, "record", None)  # a LedgerAccountant's
        self._counted = None if accountant is None else _STEPS_COUNTED_BY_OPACUS.setdefault(accountant, Counter())

    def charge_unreleased(self, optimizer: DPOptimizer, draw: Draw) -> None:
        """Charge a draw as if it were released; in a distributed training with the next release, for which all wait.

        Raises:
            LedgerError: the charge was not admitted.
        """
        source = guard_of(optimizer).source
        assert source is not None, "a draw has a source"
        if self._alone:
            self._authorize_unreleased(optimizer, draw)
        else:
            source.owed += 1
        draw.unreleased, draw.asked = {}, True

    def _authorize_unreleased(self, optimizer: DPOptimizer, draw: Draw) -> None:
        _, release = self._all_releases(optimizer, mechanism_of(optimizer))
        probability = self._probability(draw) if guard_of(optimizer).amplified else 1.0
        self._authorize(self._sampled(probability, release))
        if self._record is not None:
            self._record(self.event, optimizer.noise_multiplier, probability)

    def _authorize_on_all_ranks(self, optimizer: DPOptimizer) -> None:
        if optimizer.rank > 0:
            self._note_request(optimizer)
            receive_result()
            self._authorize_step(optimizer)
            return
        with broadcast_result():
            self._authorize_owed(optimizer)
            self._authorize_step(optimizer)

    def _authorize_owed(self, optimizer: DPOptimizer) -> None:
        guard = guard_of(optimizer)
        while guard.source is not None and guard.draw is not None and guard.source.owed:
            self._authorize_unreleased(optimizer, guard.draw)
            guard.source.owed -= 1

    def _authorize_step(self, optimizer: DPOptimizer) -> None:
        """Charge the step, unless the charge of its sample covers it."""
        step = self.read(optimizer)
        guard = guard_of(optimizer)
        self._note_request(optimizer)
        if guard.trusted or not guard.amplified:
            self._authorize(step)
        else:
            draw, source = guard.draw, guard.source
            assert draw is not None, "the guard let a step through that is of no sample"
            assert source is not None
            with source.lock:
                self._authorize_sample(optimizer, draw, step)

    @staticmethod
    def _note_request(optimizer: DPOptimizer) -> None:
        draw = guard_of(optimizer).draw
        if draw is not None:
            draw.asked = True

    def _authorize_sample(self, optimizer: DPOptimizer, draw: Draw, step: Event) -> None:
        """Charge all releases of a sample before the first one, and mark this one as used."""
        self.charged = False
        if draw.unreleased is None:
            steps, release = self._all_releases(optimizer, step)
            self._authorize(self._sampled(self._probability(draw), release))
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

    def _all_releases(self, optimizer: DPOptimizer, step: Event) -> tuple[dict[DPOptimizer, list[Event]], Event]:
        """Return the events of all releases of a sample by optimizer, and together."""
        if self._single:
            return {optimizer: [step]}, step
        steps = {
            member: [step if member is optimizer else mechanism_of(member)] * self._releases for member in self._members
        }
        return steps, together([event for events in steps.values() for event in events])

    def _probability(self, draw: Draw) -> float:
        known, stated = draw.sampling_probability, self._stated
        if known is not None and stated is not None and stated < known:
            raise UnsupportedTrainingError(
                f"sampling_probability={stated:g} was stated, but this sample was drawn with {known:g}. Leave "
                f"sampling_probability out: it is read from the loader's sampler."
            )
        probability = known if stated is None else stated
        assert probability is not None, "attach has looked for it"
        return probability

    def _sampled(self, probability: float, release: Event) -> Event:
        """Return the event of a sample: the last one, if nothing has changed."""
        if self._last_sample is None or self._last_sample[:2] != (probability, release):
            event = release if probability == 1.0 else poisson_sampled(probability, release)
            self._last_sample = probability, release, event
        return self._last_sample[2]

    def _authorize(self, event: Event) -> None:
        if self.run is not None:
            try:
                self.run.authorize(event=event)
            except RequestInDoubtError:
                # The previous step had other noise and got no answer: it is charged but was not released.
                cast("Run", self.run).resolve_in_doubt()
                self.run.authorize(event=event)
            _CHARGED_TO_RUN[self._run_id] += 1
        self.event, self.charged = event, True


def mechanism_of(optimizer: DPOptimizer) -> Event:
    """Return the event of an attached optimizer's next step, without the sampling."""
    charger = guard_of(optimizer).charger  # not its step_hook, which a script may have replaced
    assert charger is not None, "the optimizer is attached"
    read = charger.read
    event: Event = read.mechanism(optimizer) if isinstance(read, StepReader) else read(optimizer)
    return event


def accountant_of(hook: Any) -> IAccountant | None:  # noqa: ANN401 - any hook
    """Return the accountant that an Opacus hook counts for, or None."""
    owner = inspect.getclosurevars(hook).nonlocals.get("self") if inspect.isfunction(hook) else None
    return owner if isinstance(owner, IAccountant) else None


def uncharged_steps(accountant: IAccountant, run: Run | Trial) -> int:
    """Count the steps in an accountant's history that cannot have been charged to the run.

    A resumed run has admitted the steps of earlier processes, which a checkpoint's history contains too.
    """
    counted = _STEPS_COUNTED_BY_OPACUS.get(accountant, Counter())[None]
    seen = sum(int(steps) for *_, steps in accountant.history) - counted
    return max(0, seen - max(0, run.next_step - _CHARGED_TO_RUN[run.id]))


def together(events: list[Event]) -> Event:
    """Combine several events on one sample."""
    if len(events) == 1:
        return events[0]
    return self_composed(events[0], len(events)) if all(event == events[0] for event in events) else composed(events)
