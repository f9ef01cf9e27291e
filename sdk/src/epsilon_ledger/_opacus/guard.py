"""Guard that each released gradient covers exactly one complete sample."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer

from epsilon_ledger import Event, Run, Trial
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.ghost import GhostClipping
from epsilon_ledger._opacus.parameters import clipping_norm, private_parameters, refuse_scaler, rows_of
from epsilon_ledger._opacus.ranks import agree, workers
from epsilon_ledger._opacus.samples import Draw, PhysicalBatch, SampleSource

_FETCH_AND_STEP: Final = (
    "Iterate the loader that make_private returned, or that a BatchMemoryManager made of it, and step each batch once, "
    "before the next one is fetched."
)
_DISCARD: Final = (
    "epsilon_ledger.opacus.discard_batch(optimizer) gives up what was not released, and charges a batch that was drawn"
)


class Charger(Protocol):
    """The step hook that charges for an optimizer."""

    run: Run | Trial | None
    """Charged; None in a distributed worker."""
    read: Callable[[DPOptimizer], Event]
    """Returns an optimizer's step as an event."""

    def charge_unreleased(self, optimizer: DPOptimizer, draw: Draw) -> None:
        """Charge a draw that is not released."""
        ...


class GradientGuard:
    """Guard of an optimizer's steps, virtual ones included; created by `guard_of`.

    It replaces the optimizer's `pre_step`.
    """

    def __init__(self, optimizer: DPOptimizer) -> None:
        self._optimizer = optimizer
        self._alone = workers(optimizer) == 1
        self._pre_step: Callable[[], Any] = optimizer.pre_step
        self.source: SampleSource | None = None
        """Source of its batches, or None if unknown."""
        self.amplified = True
        """Whether sampling is charged, so that each sample may be released once."""
        self.trusted = False
        """Whether the user states the event of a step, without checks of its gradient."""
        self.clipping: GhostClipping | None = None
        """The module that clips, where it is not the optimizer."""
        self.module: Any = None
        """The trained module, or Opacus' hooks of it, if known."""
        self.charger: Charger | None = None
        """The hook that charges, once attached."""
        self.authorized = False
        """Whether the hook has let the current step through."""
        self._open: Draw | None = None
        self._stepped = 0
        self._rows = 0
        self._clipped_to: object = None
        optimizer.pre_step = self.pre_step
        # So a GradScaler calls `step` whatever it has found in the gradients.
        optimizer._step_supports_amp_scaling = True  # noqa: SLF001 - torch's name of it

    @property
    def draw(self) -> Draw | None:
        """The sample of the current step."""
        return self._open

    @property
    def evaluates(self) -> bool:
        """Whether the module is known to be in evaluation mode, as a whole."""
        module = getattr(self.module, "_module", self.module)
        return module is not None and not module.training and not any(part.training for part in module.modules())

    def pays_by(self, run: Run | Trial | None) -> bool:
        """Return whether its steps are charged to a run."""
        return run is not None and self.charger is not None and self.charger.run is run

    def charge_unreleased(self, draw: Draw) -> None:
        """Charge a draw that this optimizer does not release.

        Raises:
            LedgerError: the charge was not admitted.
        """
        if self.charger is not None:
            self.charger.charge_unreleased(self._optimizer, draw)

    def pre_step(self, closure: object = None) -> Any:  # noqa: ANN401, ARG002 - as Opacus has it
        """Clip and accumulate; before a release check, add noise and authorize.

        Returns:
            As Opacus' own `pre_step`: whether the parameters may move.

        Raises:
            LedgerError: the step was not admitted; its gradients are deleted.
        """
        signals = self._optimizer._step_skip_queue  # noqa: SLF001 - no public API for split batches
        left = max(0, len(signals) - 1)
        self.authorized = False
        try:
            refuse_scaler(self._optimizer)
            self._check()
            released = self._pre_step()
            if released:
                self._require_authorized()
        except BaseException:
            self.wipe()
            del signals[: max(0, len(signals) - left)]
            raise
        if released:
            self._open = None
        return released

    def require_nothing_open(self) -> None:
        """Require that no partial batch is pending before a new iteration.

        Raises:
            UnsupportedTrainingError: the optimizer holds an unreleased sum, or signals for missing batches.
        """
        if self._open is not None:
            raise UnsupportedTrainingError(
                f"The optimizer holds {self._rows} of the {self._open.size} records of a batch whose other "
                f"physical batches were not stepped, and a new iteration would add other batches to "
                f"them. {_DISCARD}; then begin."
            )
        if self._optimizer._step_skip_queue:  # noqa: SLF001 - as above
            raise UnsupportedTrainingError(
                f"The optimizer waits for steps that signal_skip_step announced and that were not taken; in a new "
                f"iteration they would fall upon other batches. {_DISCARD}; then begin the iteration."
            )

    def wipe(self) -> None:
        """Delete all gradients, sums and norms of records."""
        optimizer = self._optimizer
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            parameter.grad = parameter.grad_sample = parameter.summed_grad = None
            for name in ("_current_grad_sample", "_norm_sample"):
                if hasattr(parameter, name):
                    delattr(parameter, name)
        for state in getattr(optimizer, "grad_state", {}).values():
            state["summed_grad"] = None
        if type(optimizer) is AdaClipDPOptimizer:
            optimizer.sample_size = optimizer.unclipped_num = 0
        if self.clipping is not None:
            self.clipping.wipe()
        optimizer._is_last_step_skipped = False  # noqa: SLF001 - otherwise zero_grad keeps the next sum
        self._open = None

    def _require_authorized(self) -> None:
        if not self.authorized:
            raise UnsupportedTrainingError(
                "The optimizer's step_hook is not the one that attach has set, so this step was not charged, and is "
                "not released. Attach again; optimizer.attach_step_hook(hook) adds a hook of your own."
            )

    def _check(self) -> None:
        """Check the current gradient, on all ranks together if it is to be released."""
        error: Exception | None = None
        try:
            if not self.trusted:
                self._take_piece()
        except (UnsupportedTrainingError, ValueError) as found:
            error = found
        if not self._alone and not self._optimizer._check_skip_next_step(pop_next=False):  # noqa: SLF001
            self._agree(error)
        elif error is not None:
            raise error

    def _agree(self, error: Exception | None) -> None:
        source = None if self.trusted else self.source
        owed = 0 if source is None else source.owed
        owed = agree(self._optimizer, error, self._open, needed=source is not None, owed=owed)
        if source is not None:
            source.owed = owed

    def _take_piece(self) -> None:
        parameters = private_parameters(self._optimizer)
        rows, clipped_to = self._clipped(parameters)
        if self._open is None and self._holds_sum(parameters):
            raise UnsupportedTrainingError(
                f"The optimizer holds a sum of batches that were added up before it was attached. {_DISCARD}."
            )
        if self.source is None:
            if self._optimizer._check_skip_next_step(pop_next=False):  # noqa: SLF001 - as above
                raise UnsupportedTrainingError(
                    "It is not known which batch this physical batch is of. Attach the optimizer with data_loader=..., "
                    "the loader that make_private returned."
                )
            return
        physical = self.source.current
        if self.source.evaluated and (physical is None or physical.draw.asked):
            raise UnsupportedTrainingError(
                "The last batch was fetched without gradients, or by a loop in evaluation mode: it was read for an "
                "evaluation, was not charged, and is not stepped. Fetch the batches of the training with gradients "
                "enabled and the module in training mode."
            )
        if physical is None:
            raise UnsupportedTrainingError(
                f"No batch was drawn for this step since the optimizer was attached and an iteration began. "
                f"{_FETCH_AND_STEP}"
            )
        self._add(physical, rows, clipped_to)
        if physical.split:
            self._optimizer._step_skip_queue[:] = [not physical.last]  # noqa: SLF001 - as above

    def _holds_sum(self, parameters: list[Any]) -> bool:
        """Return whether a sum is unreleased; Opacus marks released ones. With FSDP parameters do not keep them."""
        states = getattr(self._optimizer, "grad_state", None)
        for parameter in parameters:
            total = parameter.summed_grad if states is None else states[parameter]["summed_grad"]
            if total is not None and not hasattr(total, "_processed"):
                return True
        return False

    def _add(self, physical: PhysicalBatch, rows: int, clipped_to: object) -> None:
        """Add a physical batch to the open sample, or open a new sample with it."""
        draw = physical.draw
        if self._open is None:
            self._require_unused(draw)
            self._stepped, self._rows, self._clipped_to = 0, 0, clipped_to
        elif draw is not self._open:
            raise UnsupportedTrainingError(
                f"The optimizer holds a part of an earlier batch, and this step is of another one: a record may be in "
                f"both, which its clipping norm does not bound. All that was added up is gone. {_FETCH_AND_STEP}"
            )
        if physical.split and physical.index != self._stepped:
            raise UnsupportedTrainingError(
                f"This is physical batch {physical.index + 1} of its batch, and {self._stepped} were stepped. The "
                f"records of a physical batch depend on all others, so a batch is released with all of its "
                f"physical batches, each stepped once, or not at all. {_FETCH_AND_STEP}"
            )
        if clipped_to != self._clipped_to:
            raise UnsupportedTrainingError(
                f"The clipping norm went from {self._clipped_to} to {clipped_to} between two physical batches of one "
                f"batch: the noise would not fit. Move it after a release."
            )
        self._open, self._stepped, self._rows = draw, self._stepped + 1, self._rows + rows
        self._require_whole(physical, rows)

    def _require_whole(self, physical: PhysicalBatch, rows: int) -> None:
        """Check the gradient's number of records against the draw; users may split a batch further."""
        assert self.source is not None
        releasing = physical.split or not self._optimizer._check_skip_next_step(pop_next=False)  # noqa: SLF001 - as above
        found = rows if physical.split else self._rows
        # Opacus' loader can put a random record into an empty batch.
        most = physical.size or int(self.source.random_if_empty)
        if found > most or (releasing and found < physical.size):
            raise UnsupportedTrainingError(
                f"The gradient is of {found} records, but the batch that was drawn has {physical.size}: it is another "
                f"batch's, or a record is in it more than once, or some were left out by their place, which depends on "
                f"all others. {_FETCH_AND_STEP}"
            )

    def _require_unused(self, draw: Draw) -> None:
        if draw.unreleased == {}:
            raise UnsupportedTrainingError(
                "This batch was given up, and charged without a step: it is not released. Fetch the next one."
            )
        if self.amplified and draw.unreleased is not None and not draw.unreleased.get(self._optimizer):
            raise UnsupportedTrainingError(
                f"This batch was released already: a second release of one sample is not charged as a sample of its "
                f"own. {_FETCH_AND_STEP} Where several optimizers step each batch, attach them together: "
                f"attach((first, second), run, data_loader=...). Where one steps it several times, give their number: "
                f"releases_per_sample=... Then a sample is charged once for all of its releases."
            )

    def _clipped(self, parameters: list[Any]) -> tuple[int, object]:
        """Return the gradient's number of records and its clipping norm."""
        norm = clipping_norm(self._optimizer)
        if self.clipping is not None:
            return self.clipping.take(parameters, self._optimizer.max_grad_norm)
        return rows_of(parameters), norm


def present_guard(optimizer: DPOptimizer) -> GradientGuard | None:
    """Return the guard of an attached optimizer, or None."""
    present = getattr(optimizer.pre_step, "__self__", None)
    return present if isinstance(present, GradientGuard) else None


def guard_of(optimizer: DPOptimizer) -> GradientGuard:
    """Return the guard of an optimizer, created if needed."""
    return present_guard(optimizer) or GradientGuard(optimizer)


def discard_batch(optimizer: DPOptimizer) -> None:
    """Give up the batch that was fetched last, or the part of it that was stepped.

    Nothing of it is released. It was drawn, so it is charged, unless its step was asked for. The loop may go on.

    Args:
        optimizer: an attached optimizer.

    Raises:
        TypeError: it is none of Opacus.
        LedgerError: the charge was not admitted.
    """
    if not isinstance(optimizer, DPOptimizer):
        raise TypeError(f"optimizer must be the DPOptimizer that make_private returned, not {optimizer!r}.")
    guard = guard_of(optimizer)
    guard.wipe()
    optimizer._step_skip_queue.clear()  # noqa: SLF001 - nothing public empties it
    if guard.source is not None:
        guard.source.charge_unreleased()
