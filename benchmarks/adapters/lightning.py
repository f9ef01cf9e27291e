"""Lightning: the step of `opacus` in a trainer, with the ledger's callback."""

import logging
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.adapters.opacus import BATCH, NOISE, RECORDS
from epsilon_ledger import Run
from epsilon_ledger.lightning import LedgerCallback


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


class _Pause(Callback):
    """Hands each step on, and waits until the next one is wanted."""

    def __init__(self) -> None:
        self.wanted: SimpleQueue[None] = SimpleQueue()
        self.done: SimpleQueue[None] = SimpleQueue()

    def on_train_batch_end(self, *_: Any) -> None:  # noqa: ANN401 - Lightning's signature
        self.done.put(None)
        self.wanted.get()


def steps(run: Run | None) -> Iterator[None]:
    """Train in a thread of its own, as a trainer does not return between steps, and yield after each step."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    net: nn.Module = nn.Linear(64, 10)
    net, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.randn(RECORDS, 64)), batch_size=BATCH),
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
    )
    pause = _Pause()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[pause] if run is None else [LedgerCallback(run, public_size=RECORDS), pause],
    )
    Thread(target=trainer.fit, args=(_Model(net, optimizer), loader), daemon=True).start()
    while True:
        pause.done.get()
        yield
        pause.wanted.put(None)
