"""Tiny language models, their records, and Trainers for them; nothing is downloaded."""

# ruff: noqa: ANN401 - settings of Transformers, passed on

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

RECORDS, PHYSICAL, ACCUMULATED = 64, 2, 4
BATCH = PHYSICAL * ACCUMULATED
STEPS_PER_EPOCH = RECORDS // BATCH
TOKENS, WORDS = 6, 50
IGNORED = -100

ARGUMENTS: dict[str, Any] = {"per_device_train_batch_size": PHYSICAL, "gradient_accumulation_steps": ACCUMULATED}
ARGUMENTS |= {"num_train_epochs": 2, "learning_rate": 0.1, "lr_scheduler_type": "constant", "optim": "sgd"}
ARGUMENTS |= {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
ARGUMENTS |= {"use_cpu": True, "dataloader_pin_memory": False}


def gpt2(*, lora: bool = True) -> nn.Module:
    """GPT-2 of one layer, whose projections are no linear layers but Conv1D."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    sizes |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))
    if not lora:
        return model
    adapters = LoraConfig(
        r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True, init_lora_weights=False
    )
    return get_peft_model(model, adapters)


def sentences(count: int = RECORDS, *, targets: bool = True) -> list[dict[str, torch.Tensor]]:
    """Make records of different lengths; without targets, no record has a gradient, and a step moves by noise only."""
    chance = torch.Generator().manual_seed(0)
    made = []
    for number, words in enumerate(torch.randint(0, WORDS, (count, TOKENS), generator=chance)):
        mask = (torch.arange(TOKENS) < 2 + number % (TOKENS - 1)).long()
        labels = words.masked_fill(mask == 0, IGNORED) if targets else torch.full_like(words, IGNORED)
        made.append({"input_ids": words, "attention_mask": mask, "labels": labels})
    return made


def trainer_of(folder: Path, model: nn.Module | None = None, records: Any = None, **terms: Any) -> Trainer:
    """Make a Trainer as users do; an epoch has 8 steps of 4 physical batches of 2 records on average."""
    given = {name: terms.pop(name) for name in ("callbacks", "compute_loss_func", "optimizers") if name in terms}
    return Trainer(
        gpt2() if model is None else model,
        TrainingArguments(str(folder), **ARGUMENTS | terms),
        train_dataset=sentences() if records is None else records,
        **given,
    )


def weights(model: nn.Module) -> list[torch.Tensor]:
    """Copy the trained parameters."""
    return [parameter.detach().clone() for parameter in model.parameters() if parameter.requires_grad]
