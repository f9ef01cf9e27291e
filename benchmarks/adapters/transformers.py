"""Transformers: the adapters of a small GPT-2, one step of a Trainer on a Poisson sample."""

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from greenlet import getcurrent, greenlet  # type: ignore[import-untyped] # it has none
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from epsilon_ledger import Run
from epsilon_ledger._opacus.hook import LedgerHook
from epsilon_ledger.transformers import make_private

RECORDS, BATCH, NOISE = 1_000, 10, 10.0


class _Pause(TrainerCallback):
    """Callback that hands each step of a Trainer to the benchmark."""

    def on_step_end(self, *_: object, **__: object) -> None:
        """Hand a step over, and wait for the next one."""
        getcurrent().parent.switch()


class _Silent(LedgerHook):
    """Hook that asks nobody."""

    def __init__(self) -> None:
        """Need nothing."""

    def __call__(self, optimizer: object) -> None:
        """Let the step through."""


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step; without a run the same private steps, which ask nobody."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any = _trainer(folder)
        make_private(trainer, run, noise_multiplier=NOISE, max_grad_norm=1.0, public_size=RECORDS)
        if run is None:
            trainer.attach = lambda *_: vars(trainer.optimizer.optimizer).update(step_hook=_Silent())
        training = greenlet(trainer.train)
        training.switch()
        while not training.dead:
            yield
            training.switch()


def _trainer(folder: str) -> Trainer:
    model: Any = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
    )
    adapters = LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    words = torch.randint(0, 50, (RECORDS, 8))
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH * 4,  # hardly any draw has more: one physical batch a step
        num_train_epochs=1_000,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    records = [{"input_ids": each, "labels": each} for each in words]
    return Trainer(get_peft_model(model, adapters), arguments, train_dataset=records, callbacks=[_Pause()])
