"""Trainers that cannot be made private say why, and what to do instead."""

# ruff: noqa: ANN401 - settings of Transformers, passed on

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import IterableDataset

from epsilon_ledger.transformers import UnsupportedTrainingError, make_private
from tests.frameworks.language_models import gpt2, sentences, trainer_of, weights
from tests.sdk.fake_ledger import FakeRun


def refused(trainer: Any, match: str) -> None:
    kind, accumulated = type(trainer), trainer.args.gradient_accumulation_steps
    with pytest.raises(UnsupportedTrainingError, match=match):
        make_private(trainer, FakeRun(), noise_multiplier=1.0, max_grad_norm=1.0)
    assert (type(trainer), trainer.args.gradient_accumulation_steps) == (kind, accumulated)


SETTINGS = [
    ("activation_checkpointing", "runs layers twice"),
    ("auto_find_batch_size", "Choose per_device_train_batch_size"),
    ("fp16", r"Use bf16=True, or neither"),
    ("torch_compile", "hide the gradients of single records"),
]


@pytest.mark.parametrize(("setting", "match"), SETTINGS)
def test_setting_that_confuses_gradients_is_refused(tmp_path: Path, setting: str, match: str) -> None:
    trainer = trainer_of(tmp_path)
    setattr(trainer.args, setting, True)
    refused(trainer, match)


def test_trainer_whose_steps_or_records_are_not_known_is_refused(tmp_path: Path) -> None:
    class Stream(IterableDataset[dict[str, torch.Tensor]]):
        def __iter__(self) -> Any:
            return iter(sentences())

    trained = trainer_of(tmp_path, max_steps=1)
    trained.train()
    refused(trained, "it has trained already, without noise")
    of_batch = trainer_of(tmp_path, compute_loss_func=lambda outputs, _labels, **_: outputs.logits.mean())
    refused(of_batch, "Give record_losses=")
    refused(trainer_of(tmp_path, records=Stream(), max_steps=2), "Use a Dataset with __len__")
    model = gpt2()
    sgd = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    private = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8)
    refused(trainer_of(tmp_path, model, optimizers=(private, None)), "its optimizer is Opacus' already")


def normalized(model: nn.Module) -> None:
    model.norm = nn.BatchNorm1d(4)


def halved(model: nn.Module) -> None:
    model.half()


def layerwise(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda moved: moved.data.sub_(moved.grad))


def hooked(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (normalized, r"norm normalizes over the batch.*ModuleValidator\.fix"),
        (halved, r"is torch\.float16, too coarse for the noise"),
        (layerwise, "moves parameters during the backward pass"),
        (hooked, "moves parameters during the backward pass"),
    ],
)
def test_model_or_optimizer_that_is_seen_when_training_begins_is_refused(
    tmp_path: Path, change: Callable[[nn.Module], None], match: str
) -> None:
    run, model = FakeRun(), gpt2()
    change(model)
    trainer = trainer_of(tmp_path, model)
    before = weights(model)
    make_private(trainer, run, noise_multiplier=1.0, max_grad_norm=1.0)
    with pytest.raises(UnsupportedTrainingError, match=match):
        trainer.train()
    assert run.asked == []
    assert all(map(torch.equal, before, weights(model)))


NUMBERS: list[tuple[dict[str, Any], str]] = [
    ({"noise_multiplier": 0.0}, r"noise_multiplier must be in \[0\.001, 1e\+06\], not 0"),
    ({"max_grad_norm": float("nan")}, r"max_grad_norm must be in \(0, inf\), not nan"),
    ({"sampling_probability": 1.5}, r"in \(0, 1\], not 1\.5"),
]


def test_numbers_out_of_range_and_wrong_objects_are_refused(tmp_path: Path) -> None:
    run, trainer = FakeRun(), trainer_of(tmp_path)
    right: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    for wrong, match in NUMBERS:
        with pytest.raises(ValueError, match=match):
            make_private(trainer, run, **right | wrong)
    with pytest.raises(ValueError, match="There are 4 records, and a batch has 8"):
        make_private(trainer_of(tmp_path, records=sentences(4)), run, **right, public_size=4)
    linear: Any = nn.Linear(1, 1)
    with pytest.raises(TypeError, match=r"takes a transformers\.Trainer"):
        make_private(linear, run, **right)
    make_private(trainer, run, **right)
    with pytest.raises(TypeError, match="that is not private yet"):
        make_private(trainer, run, **right)
