"""Opacus adapter: every noisy step is authorized before the parameters move.

    run = LedgerClient().create_run("digits", budget="mimic/icu-team")
    attach(privacy_engine, run)                         # before make_private, or after it:
    attach(optimizer, run, data_loader=data_loader)

`optimizer.step()` raises the errors of `run.authorize`, such as BudgetExceededError. The parameters are then unchanged,
and the noisy gradient is deleted. Needs `pip install "epsilon-ledger-client[opacus]"`.

One draw of the sampler covers one release: step each batch of the loader once, whole, before the next one is fetched,
empty ones too. A batch that is left is charged; evaluate on the loader under `torch.no_grad()`, which costs nothing.
Several steps on one batch are charged as one event: `attach((first, second), ...)` for optimizers,
`releases_per_sample=` for steps. `discard_batch` gives a batch up.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping
from torch.utils.data import DataLoader

from epsilon_ledger import Event, Run, Trial
from epsilon_ledger._opacus.accountant import LedgerAccountant
from epsilon_ledger._opacus.attachment import (
    AttachOptions,
    find_clipping,
    find_public_size,
    find_source,
    settle_earlier_steps,
)
from epsilon_ledger._opacus.calibration import PlannedTraining, calibrated, expect_steps, plan_training
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.generators import keep_noise
from epsilon_ledger._opacus.ghost import clipping_of
from epsilon_ledger._opacus.guard import discard_batch, guard_of, present_guard
from epsilon_ledger._opacus.hook import LedgerHook
from epsilon_ledger._opacus.loaders import outstanding_sources
from epsilon_ledger._opacus.public_size import use_public_size
from epsilon_ledger._opacus.ranks import workers
from epsilon_ledger._opacus.samples import SampleSource
from epsilon_ledger._opacus.steps import StepReader
from epsilon_ledger._run.blocking_run import require_blocking_run

__all__ = [
    "LedgerAccountant",
    "LedgerHook",
    "PlannedTraining",
    "UnsupportedTrainingError",
    "attach",
    "discard_batch",
    "plan_training",
]


def attach(  # noqa: PLR0913 - all that only the trainer knows, by name
    target: PrivacyEngine | DPOptimizer | Sequence[DPOptimizer],
    run: Run | Trial | None,
    *,
    data_loader: DataLoader | None = None,
    sampling_probability: float | None = None,
    event: Callable[[DPOptimizer], Event] | None = None,
    module: Any = None,  # noqa: ANN401 - a module, or Opacus' hooks of one
    releases_per_sample: int = 1,
    earlier_steps: Literal["refuse", "report", "charged"] = "refuse",
    epochs: int | None = None,
    public_size: int | None = None,
) -> None:
    """Authorize every noisy step of an optimizer or engine.

    Noise and samples get generators of their own, filled with the operating system's entropy, whatever a script has
    seeded or restores. In secure mode the generator stays.

    A privacy engine must not have made anything private yet: all its optimizers are attached, and its accountant
    becomes a LedgerAccountant. Its `make_private_with_epsilon` finds the minimum noise with which all accounts of the
    run, as they are then, admit all steps. An optimizer keeps its engine's accountant, which counts beside the ledger.

    The event is read at each step: the current noise multiplier, the sampler's probability, the count of adaptive
    clipping. Virtual steps of a BatchMemoryManager release nothing and are not authorized. In distributed training rank
    0 authorizes for all; the other ranks pass None as the run, and the same other arguments.

    Args:
        target: a PrivacyEngine, or a DPOptimizer from `make_private`; or several that step the same batches, whose
            steps on one batch are charged as one event.
        run: to charge.
        data_loader: from `make_private`, with an optimizer; it determines the sampling.
        sampling_probability: in (0, 1], for a loader with a custom Poisson sampler; 1.0 claims no sampling, which is
            right for one batch of all the data, and for shuffled batches if neighbours have the same size.
        event: returns a step's event instead of all checks here, for training unknown to this adapter; the caller then
            guarantees the sampling.
        module: first result of `make_private`, with an optimizer that uses ghost clipping.
        releases_per_sample: steps of each optimizer on one batch.
        earlier_steps: for uncharged steps that Opacus' accountant shows from before: "refuse" to attach, "report" them
            to the run, or treat them as "charged" elsewhere.
        epochs: number of all epochs of the training, from which the run learns its `expected_steps`: a refusal then
            answers for all steps that are left. `make_private_with_epsilon` knows it.
        public_size: public number of records, at least 1, from which the sample rate, the steps of an epoch and the
            expected batch size are derived instead of from the number of records, which is private under
            add_or_remove_one; by default the declared size of the population. With an optimizer the sample rate and
            the steps stay those of its loader.

    Raises:
        UnsupportedTrainingError: the cost of the steps is unknown, for instance without Poisson samples.
        ValueError: it is attached to another run, or too late, or the sampling is unknown.
        TypeError: an argument has another type, or the run is an AsyncRun or no run.
    """
    options = AttachOptions(
        data_loader,
        sampling_probability,
        event,
        module,
        releases_per_sample,
        earlier_steps,
        epochs,
        public_size,
    )
    options.check()
    if isinstance(target, PrivacyEngine):
        if data_loader is not None:
            raise ValueError("A privacy engine gets its loader in make_private: attach it without data_loader.")
        _attach_engine(target, run, options)
        return
    optimizers = tuple(target) if isinstance(target, Sequence) else (target,)
    if not optimizers or not all(isinstance(optimizer, DPOptimizer) for optimizer in optimizers):
        raise TypeError(
            f"attach takes a PrivacyEngine, or the optimizer that its make_private returned, not {type(target)}."
        )
    attached = [_is_attached(optimizer, run) for optimizer in optimizers]
    if not (all(attached) and len(optimizers) == 1 and options == AttachOptions()):
        _attach_optimizers(optimizers, run, options)


def _is_attached(optimizer: DPOptimizer, run: Run | Trial | None) -> bool:
    asks = workers(optimizer) == 1 or optimizer.rank == 0
    if run is None and asks:
        raise ValueError("The run is missing: who is charged?")
    if run is not None and not asks:
        raise ValueError(f"Rank 0 asks for all: on rank {optimizer.rank} give None for the run.")
    present = optimizer.step_hook
    if not isinstance(present, LedgerHook):
        return False
    if (present.run and present.run.id) != (run and run.id):
        raise ValueError(f"This optimizer is charged to {present.run and present.run.id}: one run pays for a step.")
    return True


def _attach_optimizers(optimizers: tuple[DPOptimizer, ...], run: Run | Trial | None, options: AttachOptions) -> None:
    """Attach optimizers after checking all of them, so that a failure changes nothing."""
    checked = None if run is None else require_blocking_run(run)
    readers = [options.event or StepReader(optimizer) for optimizer in optimizers]
    sources = [None if options.event else find_source(optimizer, checked, options) for optimizer in optimizers]
    clippings = [None if options.event else find_clipping(optimizer, options) for optimizer in optimizers]
    for optimizer in optimizers:
        settle_earlier_steps(optimizer, checked, options)
    _charge_left(optimizers, checked, sources)
    size = find_public_size(optimizers[0], checked, options)
    for optimizer, read, source, module in zip(optimizers, readers, sources, clippings, strict=True):
        guard = guard_of(optimizer)
        if size is not None and options.data_loader is not None:
            use_public_size(optimizer, options.data_loader, size, original=options.original)
        if guard.source is not source:
            # Signals of unobserved batches: the next iteration starts without them.
            optimizer._step_skip_queue.clear()  # noqa: SLF001 - no public API empties it
            if guard.source is not None:
                guard.source.consumers.pop(guard, None)
        guard.source, guard.trusted = source, options.event is not None
        guard.amplified = options.sampling_probability != 1.0
        guard.clipping = None if module is None else clipping_of(module)
        guard.module = options.module if options.module is not None else guard.module
        keep_noise(optimizer)
        if source is not None:
            source.consumers[guard] = None
            if source.poisson or guard.amplified:
                source.keep_samples(secure=optimizer.secure_mode)
        then = optimizer.step_hook
        hook = LedgerHook(
            checked,
            read,
            optimizers,
            stated=options.sampling_probability,
            releases=options.releases_per_sample,
            then=then.then if isinstance(then, LedgerHook) else then,
        )
        # Opacus keeps one hook, which a later one would silently replace.
        DPOptimizer.attach_step_hook(optimizer, hook)
        guard.charger = hook
        optimizer.attach_step_hook = hook.chain
    if options.epochs is not None and options.data_loader is not None and not isinstance(checked, Trial | None):
        expect_steps(checked, options.epochs * len(options.data_loader) * _charges_per_sample(optimizers, options))


def _charge_left(
    optimizers: tuple[DPOptimizer, ...], run: Run | Trial | None, sources: list[SampleSource | None]
) -> None:
    """Charge the draws that these optimizers, or others of the run, have left: the data may have decided it."""
    own = [present_guard(optimizer) for optimizer in optimizers]
    for left in outstanding_sources():
        if left in sources or not any(guard in own or guard.pays_by(run) for guard in left.consumers):
            continue
        left.charge_unreleased()
        if sources[0] is not None:
            sources[0].owed, left.owed = sources[0].owed + left.owed, 0


def _charges_per_sample(optimizers: tuple[DPOptimizer, ...], options: AttachOptions) -> int:
    """Count the charges of one batch: one for all its releases, unless each is charged by itself."""
    together = options.event is None and options.sampling_probability != 1.0
    return 1 if together else len(optimizers) * options.releases_per_sample


def _attach_engine(engine: PrivacyEngine, run: Run | Trial | None, options: AttachOptions) -> None:
    if isinstance(engine, PrivacyEngineAdaptiveClipping):
        raise UnsupportedTrainingError(
            "PrivacyEngineAdaptiveClipping moves the clipping norm before a step can be asked for, by a count whose "
            "noise depends on the private size of the batch. Use PrivacyEngine with clipping='adaptive'."
        )
    if engine.dataset is not None:
        raise ValueError(
            "This engine has made an optimizer private already: attach(optimizer, run, data_loader=data_loader)."
        )
    if isinstance(engine.accountant, LedgerAccountant):
        if run is None or engine.accountant.run.id != run.id:
            raise ValueError(f"This engine's accountant belongs to {engine.accountant.run.id}.")
    elif run is not None:
        engine.accountant = LedgerAccountant(run, instead_of=engine.accountant.mechanism())
    make_private = engine.make_private

    @functools.wraps(make_private)
    def make_private_and_attach(**arguments: Any) -> Any:  # noqa: ANN401 - Opacus' own signature
        made = make_private(**arguments)
        # The module, the optimizer, with ghost clipping the criterion, and the loader.
        _is_attached(made[1], run)
        loader = arguments["data_loader"]
        _attach_optimizers((made[1],), run, replace(options, data_loader=made[-1], module=made[0], original=loader))
        return made

    engine.make_private = make_private_and_attach
    with_epsilon = calibrated(
        engine,
        run,
        stated=options.sampling_probability,
        releases=options.releases_per_sample,
        custom=options.event,
        public_size=options.public_size,
    )
    engine.make_private_with_epsilon = functools.wraps(engine.make_private_with_epsilon)(with_epsilon)
