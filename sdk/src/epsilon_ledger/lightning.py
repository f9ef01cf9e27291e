"""Lightning under a budget: training with Opacus' optimizer ends, without an exception, when the ledger refuses a step.

    net, optimizer, loader = privacy_engine.make_private(...)  # the model runs net, configure_optimizers returns this
    trainer = Trainer(callbacks=[LedgerCallback(run)])
    trainer.fit(model, loader)

Batches that do not fit into memory come in pieces: `trainer.fit(model, in_pieces(loader, 64, optimizer))`.

Needs `pip install "epsilon-ledger-client[lightning]"`; works with `lightning` and with `pytorch_lightning`.
"""

import functools
from collections.abc import Callable
from typing import Any

from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.batch_memory_manager import BatchSplittingSampler, wrap_data_loader
from torch.utils.data import DataLoader

from epsilon_ledger import BudgetExceededError, Run
from epsilon_ledger._opacus.loaders import UnsizedSplitting, observe
from epsilon_ledger._opacus.samples import SampleSource
from epsilon_ledger.opacus import UnsupportedTrainingError, attach

try:
    from lightning.pytorch import Callback
except ImportError:  # the same code, as it was packed before
    from pytorch_lightning import Callback

__all__ = ["LedgerCallback", "in_pieces"]


def in_pieces(data_loader: DataLoader, max_batch_size: int, optimizer: DPOptimizer) -> DataLoader:
    """Split the batches of a loader into pieces that fit into memory, for a `Trainer`.

    Opacus' `wrap_data_loader` and `BatchMemoryManager` estimate how many pieces there will be. Lightning ends the epoch
    after so many, mostly within a batch. This loader has no length, so that Lightning trains until it is exhausted.

    Args:
        data_loader: what `make_private` returned.
        max_batch_size: the most records in a piece, at least 1.
        optimizer: what `make_private` returned.

    Returns:
        A loader of the pieces; with `Trainer(limit_train_batches=...)` an epoch may still end within a batch.
    """
    observe(data_loader)
    pieces = wrap_data_loader(data_loader=data_loader, max_batch_size=max_batch_size, optimizer=optimizer)
    pieces.batch_sampler.__class__ = UnsizedSplitting
    return pieces


class LedgerCallback(Callback):
    """Attaches the DP optimizers of a fit to a run, stops the fit at a refusal, and logs `epsilon`.

    Several DP optimizers share the batches of the fit: what they do with one batch is charged as one event.

    Args:
        run: who is charged; None on the ranks that rank 0 speaks for.
        **how: as for `epsilon_ledger.opacus.attach`, where the training loader does not say how records are drawn.
    """

    def __init__(self, run: Run | None, **how: Any) -> None:  # noqa: ANN401 - passed on
        self.run = run
        self.refusal: BudgetExceededError | None = None
        """What ended the fit, if a refusal did."""
        self._how = how
        self._steps: list[tuple[DPOptimizer, Callable[..., Any]]] = []
        self._loader: Any = None
        self._source: SampleSource | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - Lightning's signature
        """Attach the optimizers.

        Args:
            trainer: with its optimizers and its loader set up.
            pl_module: the model.

        Raises:
            ValueError: there is no DP optimizer: nothing would be asked.
            LedgerError: as `attach`.
        """
        self._attach(trainer, pl_module)
        # Lightning has begun to iterate before it called, and what was drawn until now is not known.
        iter(trainer.fit_loop._data_fetcher)  # noqa: SLF001 - nothing public begins anew
        for optimizer in _private(trainer):
            self._steps.append((optimizer, optimizer.step))
            optimizer.step = functools.partial(self._step, optimizer.step, trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - as above
        """Attach the optimizers to the epoch's loader, if it is another one than before.

        Args:
            trainer: the trainer.
            pl_module: the model.
        """
        if trainer.train_dataloader is not self._loader:
            self._attach(trainer, pl_module)

    def on_train_batch_start(self, *_: Any) -> None:  # noqa: ANN401 - as above
        """Note that the training goes on to the next batch; Lightning may have fetched more of them."""
        if self._source is not None:
            self._source.iteration.hand()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:  # noqa: ANN401, ARG002 - as above
        """Log what has been spent.

        Args:
            trainer: the trainer.
            pl_module: what logs.
            *batch: what the batch gave.
        """
        if self.run is not None:
            pl_module.log("epsilon", self.run.epsilon, prog_bar=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ANN401, ARG002 - as above
        """Give the optimizers their own step back; they go on asking.

        Args:
            trainer: the trainer.
            pl_module: the model.
            stage: what ends.
        """
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ANN401, ARG002 - as above
        """Do as `teardown` does, which Lightning leaves out then.

        Args:
            trainer: the trainer.
            pl_module: the model.
            exception: what ends the fit.
        """
        self._detach()

    def _detach(self) -> None:
        while self._steps:
            optimizer, step = self._steps.pop()
            optimizer.step = step
        if self._source is not None:
            self._source.handed_by_trainer = False
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
        if any(isinstance(optimizer, DPOptimizerFastGradientClipping) for optimizer in private):
            clips = (module for module in pl_module.modules() if hasattr(module, "get_clipping_coef"))
            how = {"module": next(clips, None)} | how
        attach(private, self.run, **how)
        self._loader = loader
        self._source = observe(how["data_loader"]) if isinstance(how["data_loader"], DataLoader) else None
        if self._source is not None:
            self._source.handed_by_trainer = True

    def _step(self, step: Callable[..., Any], trainer: Any, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - Lightning's
        try:
            return step(closure)
        except BudgetExceededError as refusal:
            # Raised before the update: the parameters are as they were, and nothing of the batch is kept.
            self.refusal = refusal
            trainer.should_stop = True
            return None


def _private(trainer: Any) -> list[DPOptimizer]:  # noqa: ANN401 - a trainer
    return [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, DPOptimizer)]


def _require_whole_batches(loader: Any) -> None:  # noqa: ANN401 - a loader, or what else Lightning takes
    """Let a loader pass of which Lightning does not end the epoch within a batch."""
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchSplittingSampler) and not isinstance(sampler, UnsizedSplitting):
        raise UnsupportedTrainingError(
            "Lightning ends an epoch after len(loader) pieces, which Opacus only estimates: mostly within a batch, "
            "whose first pieces would be added to those of another one. Give the trainer "
            "epsilon_ledger.lightning.in_pieces(loader, max_batch_size, optimizer) instead, which has no length."
        )
