"""Lightning under a budget: training with Opacus' optimizer ends, without an exception, when the ledger refuses a step.

    net, optimizer, loader = privacy_engine.make_private(...)  # the model runs net, configure_optimizers returns this
    trainer = Trainer(callbacks=[LedgerCallback(run)])
    trainer.fit(model, loader)

Needs `pip install "epsilon-ledger-client[lightning]"`; works with `lightning` and with `pytorch_lightning`.
"""

import functools
from collections.abc import Callable
from typing import Any

from opacus.optimizers import DPOptimizer

from epsilon_ledger import BudgetExceededError, Run
from epsilon_ledger.opacus import attach

try:
    from lightning.pytorch import Callback
except ImportError:  # the same code, as it was packed before
    from pytorch_lightning import Callback

__all__ = ["LedgerCallback"]


class LedgerCallback(Callback):
    """Attaches the DP optimizers of a fit to a run, stops the fit at a refusal, and logs `epsilon`.

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

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002 - Lightning's signature
        """Attach the optimizers.

        Args:
            trainer: with its optimizers and its loader set up.
            pl_module: the model.

        Raises:
            ValueError: there is no DP optimizer: nothing would be asked.
            LedgerError: as `attach`.
        """
        private = [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, DPOptimizer)]
        if not private:
            raise ValueError(
                "This fit has no DP optimizer to charge: configure_optimizers must return the one that Opacus' "
                "make_private returned."
            )
        for optimizer in private:
            attach(optimizer, self.run, **({"data_loader": trainer.train_dataloader} | self._how))
            self._steps.append((optimizer, optimizer.step))
            optimizer.step = functools.partial(self._step, optimizer.step, trainer)

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
        while self._steps:
            optimizer, step = self._steps.pop()
            optimizer.step = step

    def _step(self, step: Callable[..., Any], trainer: Any, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - Lightning's
        try:
            return step(closure)
        except BudgetExceededError as refusal:
            # Raised before the update: the parameters are as they were, and nothing of the batch is kept.
            self.refusal = refusal
            trainer.should_stop = True
            return None
