"""Lightning callback: training with Opacus' optimizer stops without an exception at a refusal.

    net, optimizer, loader = privacy_engine.make_private(...)  # the model runs net, configure_optimizers returns this
    trainer = Trainer(callbacks=[LedgerCallback(run)])
    trainer.fit(model, loader)

Split batches that exceed the memory: `trainer.fit(model, split_batches(loader, 64, optimizer))`.

Needs `pip install "epsilon-ledger-client[lightning]"`; works with `lightning` and with `pytorch_lightning`.
"""

import math
import types
from collections.abc import Callable
from typing import Any

from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler, wrap_data_loader
from torch.utils.data import DataLoader

from epsilon_ledger import BudgetExceededError, Run
from epsilon_ledger._opacus.loaders import UnsizedSplitting, observe
from epsilon_ledger._opacus.samples import SampleSource
from epsilon_ledger._run.blocking_run import require_blocking_run
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger.opacus import UnsupportedTrainingError, attach

try:
    from lightning.pytorch import Callback
except ImportError:  # the older package of the same code
    from pytorch_lightning import Callback

__all__ = ["LedgerCallback", "split_batches"]


def split_batches(data_loader: DataLoader, max_batch_size: int, optimizer: DPOptimizer) -> DataLoader:
    """Split a loader's batches into physical batches that fit into memory, for a `Trainer`.

    Opacus' `wrap_data_loader` and `BatchMemoryManager` estimate the number of physical batches, after which Lightning
    ends the epoch, mostly within a batch. This loader has no length, so that Lightning exhausts it.

    Args:
        data_loader: from `make_private`.
        max_batch_size: maximum number of records in a physical batch, at least 1.
        optimizer: from `make_private`.

    Returns:
        A loader of the physical batches; with `Trainer(limit_train_batches=...)` an epoch may still end within a batch.

    Raises:
        TypeError: an argument has another type.
        ValueError: `max_batch_size` is below 1.
    """
    if not isinstance(data_loader, DataLoader) or not isinstance(optimizer, DPOptimizer):
        raise TypeError(
            "split_batches takes the DataLoader and the optimizer that make_private returned, not "
            f"{type(data_loader).__name__} and {type(optimizer).__name__}."
        )
    whole("max_batch_size", max_batch_size)
    observe(data_loader)
    split = wrap_data_loader(data_loader=data_loader, max_batch_size=max_batch_size, optimizer=optimizer)
    split.batch_sampler.__class__ = UnsizedSplitting
    return split


class LedgerCallback(Callback):
    """Callback that attaches DP optimizers to a run, stops at a refusal, and logs `epsilon`.

    Several DP optimizers share the batches; their steps on one batch are charged as one event.

    Args:
        run: to charge; None on ranks other than rank 0.
        **how: as for `epsilon_ledger.opacus.attach`, if the loader does not determine the sampling.

    Raises:
        TypeError: the run is an AsyncRun, or no run.
    """

    def __init__(self, run: Run | None, **how: Any) -> None:  # noqa: ANN401 - passed on
        self.run = None if run is None else require_blocking_run(run)
        self.refusal: BudgetExceededError | None = None
        """The refusal that ended the fit, or None."""
        self._how = how
        self._steps: list[tuple[DPOptimizer, Callable[..., Any]]] = []
        self._refused = 0
        self._loader: Any = None
        self._source: SampleSource | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - Lightning's signature
        """Attach the optimizers.

        Args:
            trainer: with its optimizers and loader set up.
            pl_module: the model.

        Raises:
            ValueError: there is no DP optimizer, so that nothing would be authorized.
            LedgerError: as `attach`.
        """
        self._attach(trainer, pl_module)
        steps = trainer.estimated_stepping_batches  # infinite if it cannot be known
        if self.run is not None and len(_private(trainer)) == 1 and math.isfinite(steps):
            self.run.expected_steps = self.run.next_step + max(1, int(steps) - trainer.global_step)
        # Lightning has already started to iterate, and earlier draws were not observed.
        iter(trainer.fit_loop._data_fetcher)  # noqa: SLF001 - no public API restarts it
        for optimizer in _private(trainer):
            self._steps.append((optimizer, optimizer.step))
            optimizer.step = self._stopping(optimizer, trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - as above
        """Attach the optimizers to the epoch's loader if it has changed."""
        if trainer.train_dataloader is not self._loader:
            self._attach(trainer, pl_module)

    def on_train_batch_start(self, *_: Any) -> None:  # noqa: ANN401 - as above
        """Record the delivery of the batch; Lightning may have prefetched others."""
        if self._source is not None:
            self._source.deliver_next()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:  # noqa: ANN401, ARG002 - as above
        """Take refused steps back from `global_step`; log the epsilon and the used share.

        It is logged as often as Lightning hands metrics to loggers: `log` takes a millisecond.
        """
        if self._refused:
            _take_back(trainer, pl_module, self._refused)
            self._refused = 0
        every = max(1, trainer.log_every_n_steps)
        due = trainer.is_last_batch or trainer.global_step % every == 0
        if self.run is not None and (due or self.refusal is not None):
            pl_module.log_dict({"epsilon": self.run.epsilon, "used": self.run.used}, prog_bar=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ANN401, ARG002 - as above
        """Restore the optimizers' `step`; they remain attached."""
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ANN401, ARG002 - as above
        """Clean up like `teardown`, which Lightning skips after an exception."""
        self._detach()

    def _detach(self) -> None:
        while self._steps:
            optimizer, step = self._steps.pop()
            optimizer.step = step
        if self._source is not None:
            self._source.delivered_by_trainer = False
        self._source = self._loader = None

    def _attach(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - as above
        private = _private(trainer)
        if not private:
            raise ValueError(
                "This fit has no DP optimizer to charge: configure_optimizers must return the one that Opacus' "
                "make_private returned."
            )
        loader = trainer.train_dataloader
        how = {"data_loader": loader} | self._how
        _require_whole_batches(how["data_loader"])
        trained = [module for module in pl_module.modules() if isinstance(module, AbstractGradSampleModule)]
        clips = [module for module in trained if hasattr(module, "get_clipping_coef")]
        how = {"module": next(iter(clips or trained), None)} | how
        attach(private, self.run, **how)
        self._loader = loader
        self._source = observe(how["data_loader"]) if isinstance(how["data_loader"], DataLoader) else None
        if self._source is not None:
            self._source.delivered_by_trainer = True

    def _stopping(self, optimizer: DPOptimizer, trainer: Any) -> Any:  # noqa: ANN401 - Lightning's
        """Make an optimizer's `step`, a bound method as torch's schedulers expect, that stops the fit at a refusal."""
        step = optimizer.step

        def stop_at_refusal(_: DPOptimizer, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - torch's
            try:
                return step(closure)
            except BudgetExceededError as refusal:
                # Raised before the update: the parameters are unchanged, and the batch is discarded.
                self.refusal = refusal
                self._refused += 1
                trainer.should_stop = True
                return None

        return types.MethodType(stop_at_refusal, optimizer)


def _private(trainer: Any) -> list[DPOptimizer]:  # noqa: ANN401 - a trainer
    return [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, DPOptimizer)]


def _take_back(trainer: Any, pl_module: Any, steps: int) -> None:  # noqa: ANN401 - a trainer and its model
    """Take steps that were not taken back from what Lightning counted, which checkpoints and loggers show."""
    loop = trainer.fit_loop.epoch_loop
    automatic = pl_module.automatic_optimization
    counted = (
        loop.automatic_optimization.optim_progress.optimizer.step
        if automatic
        else loop.manual_optimization.optim_step_progress
    )
    for count in (counted.total, counted.current):
        count.ready -= steps
        count.completed -= steps


def _require_whole_batches(loader: Any) -> None:  # noqa: ANN401 - a loader, or what else Lightning takes
    """Require a loader with which Lightning does not end the epoch within a batch."""
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchSplittingSampler) and not isinstance(sampler, UnsizedSplitting):
        raise UnsupportedTrainingError(
            "Lightning ends an epoch after len(loader) physical batches, which Opacus only estimates: mostly within a "
            "batch, whose first physical batches would be added to those of another one. Give the trainer "
            "epsilon_ledger.lightning.split_batches(loader, max_batch_size, optimizer) instead, which has no length."
        )
