"""A training with Lightning."""

import logging
from contextlib import suppress
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import BudgetExceededError, LedgerClient, Run, gaussian, poisson_sampled
from epsilon_ledger.lightning import LedgerCallback
from tests.frameworks.trainers.opacus import BATCH, NOISE, RECORDS
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer


class _Model(LightningModule):
    """A linear layer that Opacus has made private."""

    def __init__(self, net: nn.Module, optimizer: Any) -> None:  # noqa: ANN401 - mypy does not read Opacus
        super().__init__()
        self.net, self.optimizer = net, optimizer

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch[0]).sum()
        return loss

    def configure_optimizers(self) -> Any:  # noqa: ANN401 - as above
        return self.optimizer


class _Checkpoints(Callback):
    """Saves the run, and stops after all steps, which an earlier process may have taken in part."""

    def __init__(self, folder: TrainingFolder, run: Run, steps: int) -> None:
        self.folder, self.run, self.steps = folder, run, steps

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:  # noqa: ANN401 - Lightning's signature
        if self.run.next_step % CHECKPOINT_STEPS == 0:
            self.folder.save(self.run)
        trainer.should_stop = (self.run.step or 0) >= self.steps


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    run = folder.open_run(client, asked["budget"], **asked["ahead"])
    net: nn.Module = nn.Linear(4, 1)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    # Opacus calls it after the noise: here the parameters have moved.
    sgd.register_step_post_hook(lambda *_: folder.released(poisson_sampled(BATCH / RECORDS, gaussian(NOISE))))
    net, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=sgd,
        data_loader=DataLoader(TensorDataset(torch.randn(RECORDS, 4)), batch_size=BATCH),
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
    )
    ledger = LedgerCallback(run, public_size=RECORDS)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ledger, _Checkpoints(folder, run, asked["steps"])],
    )
    with suppress(BudgetExceededError), run:
        if (run.step or 0) < asked["steps"]:
            trainer.fit(_Model(net, optimizer), loader)
        if ledger.refusal is not None:
            raise ledger.refusal


if __name__ == "__main__":
    run_trainer(train)
