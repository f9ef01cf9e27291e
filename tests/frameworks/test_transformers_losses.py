"""A record's gradient depends on that record alone, in models of Transformers as they are."""

# ruff: noqa: ANN401 - a Trainer of a class that is made for it

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from epsilon_ledger._transformers.losses import record_losses_of
from epsilon_ledger.transformers import UnsupportedTrainingError, make_private
from tests.frameworks.language_models import IGNORED, WORDS, gpt2, sentences, trainer_of
from tests.sdk.fake_ledger import FakeRun

SIZES: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 16}


def llama(**how: Any) -> nn.Module:
    """Llama of one layer, with weights of its own kind of normalization, all of them trained."""
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **how))


def bert(kind: Any, **how: Any) -> nn.Module:
    torch.manual_seed(1)
    config = BertConfig(**SIZES, hidden_dropout_prob=0, attention_probs_dropout_prob=0, **how)
    adapters = LoraConfig(
        r=2, target_modules=["query", "value"], modules_to_save=["classifier"], init_lora_weights=False
    )
    return get_peft_model(kind(config), adapters)


def t5() -> nn.Module:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1}
    sizes |= {"num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0}
    adapters = LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False)
    return get_peft_model(T5ForConditionalGeneration(T5Config(**sizes)), adapters)


def labelled(label: Callable[[int], torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{**record, "labels": label(number)} for number, record in enumerate(sentences())]


CLASSES = BertForSequenceClassification
SEVERAL: dict[str, Any] = {"num_labels": 3, "problem_type": "multi_label_classification"}
MODELS: dict[str, tuple[Callable[[], nn.Module], list[dict[str, torch.Tensor]]]] = {
    "gpt2 with lora": (gpt2, sentences()),
    "llama, all of it": (llama, sentences()),
    "llama with tied weights": (lambda: llama(tie_word_embeddings=True), sentences()),
    "masked words": (lambda: bert(BertForMaskedLM), sentences()),
    "tokens": (lambda: bert(BertForTokenClassification, num_labels=WORDS), sentences()),
    "classes": (lambda: bert(CLASSES, num_labels=3), labelled(lambda number: torch.tensor(number % 3))),
    "a number": (lambda: bert(CLASSES, num_labels=1), labelled(lambda number: torch.tensor(float(number % 5)))),
    "several classes": (
        lambda: bert(CLASSES, **SEVERAL),
        labelled(lambda number: torch.tensor([1.0, 0.0, float(number % 2)])),
    ),
    "a translation": (t5, sentences()),
}


def private(trainer: Any, run: FakeRun | None = None, **terms: Any) -> Any:
    make_private(trainer, run or FakeRun(), noise_multiplier=1.0, max_grad_norm=1.0, **terms)
    return trainer


def gradients(trainer: Any, records: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """Compute the gradients of records in one physical batch, as the private Trainer does."""
    trainer._private_optimizer.zero_grad()
    trainer._backward(trainer.model, trainer.data_collator(records), len(records))
    return [parameter.grad_sample for parameter in trainer._private_optimizer.params]


@pytest.mark.parametrize("which", MODELS)
def test_gradient_of_record_is_same_in_any_batch_and_its_loss_is_models_own(tmp_path: Path, which: str) -> None:
    model, records = MODELS[which]
    made: Any = model()
    bare = made.get_base_model() if hasattr(made, "get_base_model") else made
    losses_of = record_losses_of(bare, 0.0)
    for record in records[:3]:
        alone = {name: value[None] for name, value in record.items()}
        outputs = bare(**alone)
        torch.testing.assert_close(losses_of(outputs, alone), outputs.loss[None])
    trainer = private(trainer_of(tmp_path, made, records))
    trainer.create_optimizer()
    trainer.model.train()
    together = gradients(trainer, records[:5])
    for number in (0, 3):
        for batch, single in zip(together, gradients(trainer, records[number : number + 1]), strict=True):
            torch.testing.assert_close(batch[number], single[0], rtol=1e-4, atol=1e-6)
    # The sum of all is what torch computes for the sum of the losses.
    assert isinstance(trainer.optimizer, DPOptimizer)
    inputs = trainer._prepare_inputs(trainer.data_collator(records[:5]))
    losses = trainer.privacy.record_losses(trainer.model(**inputs), inputs)
    wholes = torch.autograd.grad(losses.sum(), trainer.optimizer.params, allow_unused=True)
    assert any(float(each.abs().max()) > 0 for each in together)
    for batch, whole in zip(together, wholes, strict=True):
        torch.testing.assert_close(
            batch.sum(dim=0), torch.zeros_like(batch[0]) if whole is None else whole, rtol=1e-4, atol=1e-5
        )


def test_record_without_targets_has_no_loss() -> None:
    logits = torch.randn(2, 4, WORDS, requires_grad=True)
    labels = torch.tensor([[1, 2, 3, 4], [5, IGNORED, IGNORED, IGNORED]])
    losses = record_losses_of(gpt2(lora=False), 0.0)(SimpleNamespace(logits=logits), {"labels": labels})
    assert losses[1] == 0.0
    losses.sum().backward()
    assert logits.grad is not None
    assert float(logits.grad[1].abs().max()) == 0.0


def test_loss_that_does_not_tell_records_apart_is_refused(tmp_path: Path) -> None:
    trainer = private(trainer_of(tmp_path), record_losses=lambda outputs, _: outputs.loss)
    with pytest.raises(UnsupportedTrainingError, match=r"losses of the shape \(\): one loss is needed for each record"):
        trainer.train()
    unknown = trainer_of(tmp_path, bert(BertForQuestionAnswering))
    with pytest.raises(UnsupportedTrainingError, match="loss of each record of BertForQuestionAnswering is not known"):
        private(unknown)


def test_loss_with_negatives_of_batch_is_refused(tmp_path: Path) -> None:
    def in_batch(outputs: Any, _: Any) -> torch.Tensor:
        embedded = outputs.logits.mean(dim=1)
        return torch.nn.functional.cross_entropy(embedded @ embedded.T, torch.arange(len(embedded)), reduction="none")

    def less_mean(outputs: Any, _: Any) -> torch.Tensor:
        losses = outputs.logits.square().mean(dim=(1, 2))
        return losses - losses.mean()

    for losses in (in_batch, less_mean):
        trainer = private(trainer_of(tmp_path), record_losses=losses)
        trainer.create_optimizer()
        with pytest.raises(UnsupportedTrainingError, match=r"depends on other records.*InfoNCE"):
            gradients(trainer, sentences(2))


def test_layers_that_see_batch_as_whole_are_refused(tmp_path: Path) -> None:
    trainer = private(trainer_of(tmp_path, gpt2(lora=False), max_steps=4))
    with pytest.raises(UnsupportedTrainingError, match=r"as position embeddings do\. Freeze it"):
        trainer.train()


def test_records_packed_into_one_row_are_refused(tmp_path: Path) -> None:
    def packed(records: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: torch.cat([record[name] for record in records])[None] for name in records[0]}

    trainer: Any = trainer_of(tmp_path)
    trainer.data_collator = packed
    private(trainer)
    with pytest.raises(UnsupportedTrainingError, match="Do not pack several records into one row"):
        trainer.train()
