"""Opacus under a budget: every noisy step of its optimizers asks the ledger before the parameters move.

    run = LedgerClient().register_run("digits", budget="mimic/icu-team")
    attach(privacy_engine, run)                         # before make_private, or after it:
    attach(optimizer, run, data_loader=data_loader)

`optimizer.step()` raises what `run.authorize` raises, a BudgetExceededError for instance. The parameters are then as
they were, and the noisy gradient is gone. Needs `pip install "epsilon-ledger-client[opacus]"`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping
from torch.utils.data import DataLoader

from epsilon_ledger import Event, Run, Trial
from epsilon_ledger._opacus.accountant import LedgerAccountant
from epsilon_ledger._opacus.hook import LedgerHook, checked_run, workers
from epsilon_ledger._opacus.steps import StepReader, UnsupportedTrainingError, check_unsampled, sampling_probability_of

__all__ = ["LedgerAccountant", "LedgerHook", "UnsupportedTrainingError", "attach"]


def attach(
    target: PrivacyEngine | DPOptimizer,
    run: Run | Trial | None,
    *,
    data_loader: DataLoader | None = None,
    sampling_probability: float | None = None,
    event: Callable[[DPOptimizer], Event] | None = None,
) -> None:
    """Make every noisy step ask the ledger first.

    A privacy engine must not have made anything private yet: all optimizers that it makes are attached, and its
    accountant becomes a LedgerAccountant. An optimizer keeps its engine's accountant, which counts beside the ledger.

    The event is read at each step: the noise multiplier as a scheduler left it, the probability with which the sampler
    drew, the count by which adaptive clipping moves. Virtual steps of a BatchMemoryManager release nothing and are not
    asked for. In distributed training rank 0 asks and tells the others; they give None for the run.

    Args:
        target: a PrivacyEngine, or a DPOptimizer that `make_private` returned.
        run: whom the steps are charged to.
        data_loader: with an optimizer: what `make_private` returned beside it, which says how records are drawn.
        sampling_probability: in (0, 1], for a Poisson sampler of your own; 1.0 claims no sampling, which is right for
            one batch of all the data, and for shuffled batches where neighbours have the same size.
        event: what a step does, instead of all that is read here, for optimizers that this adapter does not know.

    Raises:
        UnsupportedTrainingError: the cost of such steps is not known: the loader does not draw Poisson samples, for
            instance.
        ValueError: it is attached to another run, too late or without saying how records are drawn.
        TypeError: `target` is something else, or the run is an AsyncRun.
    """
    if sampling_probability is not None and not 0.0 < sampling_probability <= 1.0:
        raise ValueError(f"sampling_probability must be in (0, 1], not {sampling_probability}.")
    if isinstance(target, PrivacyEngine):
        if data_loader is not None:
            raise ValueError("A privacy engine gets its loader in make_private: attach it without data_loader.")
        _attach_engine(target, run, {"sampling_probability": sampling_probability, "event": event})
    elif isinstance(target, DPOptimizer):
        asks = workers(target) == 1 or target.rank == 0
        if run is None:
            if asks:
                raise ValueError("The run is missing: who is charged?")
            _install(target, LedgerHook(None, None, target.step_hook))
        elif not asks:
            raise ValueError(f"Rank 0 asks for all: on rank {target.rank} give None for the run.")
        elif not _is_attached(target, run) or (data_loader, sampling_probability, event) != (None, None, None):
            read = event or StepReader(target, _probability(target, run, data_loader, sampling_probability))
            _install(target, LedgerHook(checked_run(run), read, target.step_hook))
    else:
        raise TypeError(
            f"attach takes a PrivacyEngine, or the optimizer that its make_private returned, not {type(target)}."
        )


def _is_attached(optimizer: DPOptimizer, run: Run | Trial) -> bool:
    present = optimizer.step_hook
    if not isinstance(present, LedgerHook):
        return False
    if present.run is None or present.run.id != run.id:
        raise ValueError(f"This optimizer is charged to {present.run and present.run.id}: one run pays for a step.")
    return True


def _install(optimizer: DPOptimizer, hook: LedgerHook) -> None:
    if isinstance(hook.then, LedgerHook):
        hook.then = hook.then.then
    # Opacus keeps one hook, and another one that is attached later would silently replace the ledger.
    DPOptimizer.attach_step_hook(optimizer, hook)
    optimizer.attach_step_hook = hook.chain


def _probability(
    optimizer: DPOptimizer, run: Run | Trial, data_loader: DataLoader | None, sampling_probability: float | None
) -> Callable[[], float]:
    """Find what says how records are drawn: the caller, the loader, or the event of which the run was registered."""
    if sampling_probability is not None:
        if sampling_probability == 1.0 and data_loader is not None:
            check_unsampled(data_loader, run.state.neighboring_relation)
        return lambda: sampling_probability
    if data_loader is not None:
        return sampling_probability_of(data_loader)
    event = run.state.event or {}
    stated = event.get("sampling_probability") if event.get("type") == "poisson_sampled" else None
    if stated is None:
        raise ValueError(
            "How are records drawn? Give data_loader=..., the one that make_private returned, or attach the privacy "
            "engine before make_private, or register the run with a poisson_sampled event."
        )
    probability = float(str(stated))
    # The hook of Opacus' accountant, if it is still there, knows what make_private did.
    hook = optimizer.step_hook
    rate = inspect.getclosurevars(hook).nonlocals.get("sample_rate") if inspect.isfunction(hook) else None
    if rate is not None and rate > probability:
        raise ValueError(
            f"The run was registered with a sampling probability of {probability:g}, but make_private draws with "
            f"{rate:g}. Give data_loader=..., the one that make_private returned."
        )
    return lambda: probability


def _attach_engine(engine: PrivacyEngine, run: Run | Trial | None, how: dict[str, Any]) -> None:
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
        engine.accountant = LedgerAccountant(run)
    make_private = engine.make_private

    @functools.wraps(make_private)
    def make_private_and_attach(**arguments: Any) -> Any:  # noqa: ANN401 - Opacus' own signature
        made = make_private(**arguments)
        # The module, the optimizer, with ghost clipping the criterion, and the loader.
        attach(made[1], run, data_loader=None if run is None else made[-1], **how)
        return made

    engine.make_private = make_private_and_attach
