"""A training of a language model's adapters with a Trainer of Transformers."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from epsilon_ledger import LedgerClient, gaussian, poisson_sampled
from epsilon_ledger.transformers import last_checkpoint, make_private, run_state
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

RECORDS, BATCH, NOISE = 64, 16, 20.0


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end, from the Trainer's own last checkpoint."""
    output = str(Path(asked["folder"]) / "trainer")
    checkpoint = last_checkpoint(output)
    run = (
        client.resume_run(run_state(checkpoint), **asked["ahead"])
        if checkpoint
        else folder.open_run(client, asked["budget"], **asked["ahead"])
    )
    config = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=1, eos_token_id=2)
    adapters = LoraConfig(r=1, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel(config), adapters)
    sgd = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    sgd.register_step_post_hook(lambda *_: folder.released(poisson_sampled(BATCH / RECORDS, gaussian(NOISE))))
    words = torch.randint(0, 20, (RECORDS, 4))
    arguments = TrainingArguments(
        output,
        per_device_train_batch_size=BATCH // 2,
        gradient_accumulation_steps=2,
        max_steps=asked["steps"],
        save_strategy="steps",
        save_steps=CHECKPOINT_STEPS,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    records = [{"input_ids": each, "labels": each} for each in words]
    trainer = Trainer(model, arguments, train_dataset=records, optimizers=(sgd, None))
    make_private(trainer, run, noise_multiplier=NOISE, max_grad_norm=1.0, public_size=RECORDS)
    with run:
        trainer.train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    run_trainer(train)
