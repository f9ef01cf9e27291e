"""A real Trainer with LoRA adapters, whose steps the ledger admits or refuses."""

# ruff: noqa: ANN401 - a Trainer of a class that is made for it, and Transformers' signatures

import logging
from collections import Counter
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback

from epsilon_ledger import LedgerClient, ModelOrigin, RunOrigin, gaussian, poisson_sampled
from epsilon_ledger.transformers import (
    RUN_FILE,
    UnsupportedTrainingError,
    create_run,
    last_checkpoint,
    make_private,
    origins_of,
    run_state,
)
from tests.frameworks.language_models import BATCH, RECORDS, STEPS_PER_EPOCH, gpt2, sentences, trainer_of, weights
from tests.sdk.fake_ledger import FakeLedger, FakeRun
from tests.sdk.wire import KEY, URL

STEP = poisson_sampled(BATCH / RECORDS, gaussian(1.0))


class After(TrainerCallback):
    """Callback that keeps the number and the weights after each step."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[torch.Tensor]]] = []

    def on_step_end(self, *events: Any, **trained: Any) -> None:
        self.seen.append((events[1].global_step, weights(trained["model"])))


def private(folder: Path, run: FakeRun, **terms: Any) -> Any:
    """Make a private Trainer."""
    stated: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    stated |= {name: terms.pop(name) for name in ("noise_multiplier", "sampling_probability") if name in terms}
    trainer = trainer_of(folder, **terms)
    make_private(trainer, run, **stated)
    return trainer


def test_each_draw_is_one_step_of_trainer_and_one_charge(tmp_path: Path) -> None:
    run, sizes = FakeRun(), Counter[int]()
    trainer = private(tmp_path, run)
    before = weights(trainer.model)
    prepare = trainer._prepare_inputs

    def counted(batch: dict[str, torch.Tensor]) -> Any:
        sizes[len(batch["input_ids"])] += 1
        return prepare(batch)

    trainer._prepare_inputs = counted
    trainer.train()
    assert run.asked == [STEP] * (2 * STEPS_PER_EPOCH)
    assert (trainer.state.global_step, trainer.state.max_steps) == (16, 16)
    assert run.expected_steps == 16
    assert max(sizes) == 2
    assert sizes.total() > 2 * 16, "draws of 8 records on average have several physical batches"
    assert not any(map(torch.equal, before, weights(trainer.model)))
    assert [entry["epsilon"] for entry in trainer.state.log_history][:3] == [0.25, 0.5, 0.75]
    assert [entry["used"] for entry in trainer.state.log_history][:3] == [
        step / run.ledger.capacity for step in (1, 2, 3)
    ]
    assert all("grad_norm" not in entry for entry in trainer.state.log_history)
    assert isinstance(trainer, Trainer)
    assert type(trainer).__name__ == "Trainer"


def test_refusal_ends_training_as_after_its_last_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, after = FakeRun(capacity=5), After()
    trainer = private(tmp_path, run, callbacks=[after], lr_scheduler_type="linear")
    with caplog.at_level(logging.WARNING, "epsilon_ledger.transformers"):
        done = trainer.train()
    assert len(run.asked) == done.global_step == trainer.state.global_step == 5
    assert [step for step, _ in after.seen] == [1, 2, 3, 4, 5, 5]
    assert all(map(torch.equal, after.seen[4][1], weights(trainer.model)))
    assert trainer.lr_scheduler.last_epoch == 5
    assert trainer.refusal.code == "budget_exceeded"
    assert caplog.messages == [f"The training stops after 5 steps: {trainer.refusal}"]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert done.training_loss == pytest.approx(sum(losses) / 5, rel=1e-3)
    assert all(
        parameter.grad is None and parameter.grad_sample is None and parameter.summed_grad is None
        for parameter in trainer.model.parameters()
        if parameter.requires_grad
    )
    # A higher limit, and the same Trainer goes on.
    run.ledger.capacity = 9
    trainer.train()
    assert len(run.asked) == 9


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_without_records_are_steps_too(tmp_path: Path, workers: int) -> None:
    run = FakeRun()
    trainer = private(
        tmp_path, run, records=sentences(3), max_steps=12, sampling_probability=0.125, dataloader_num_workers=workers
    )
    trainer.train()
    assert run.asked == [poisson_sampled(0.125, gaussian(1.0))] * 12


def test_noise_is_fresh_after_restart_from_one_checkpoint(tmp_path: Path) -> None:
    trainer = private(tmp_path, FakeRun(), records=sentences(targets=False), max_steps=3, save_steps=2)
    trainer.args.save_strategy = "steps"
    trainer.train()
    checkpoint = str(tmp_path / "checkpoint-2")
    ends, states = [weights(trainer.model)], []
    for _ in range(2):
        again = private(tmp_path, FakeRun(), records=sentences(targets=False), max_steps=3)

        class Kept(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                states.append(torch.get_rng_state())

        again.add_callback(Kept())
        again.train(resume_from_checkpoint=checkpoint)
        ends.append(weights(again.model))
    assert torch.equal(*states), "the Trainer has restored torch's own generator"
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert not any(map(torch.equal, ends[first], ends[second]))


def test_resumed_training_takes_steps_that_are_left(tmp_path: Path) -> None:
    first = FakeRun(capacity=11)
    trainer = private(tmp_path, first, save_strategy="steps", save_steps=5, optim="adamw_torch")
    trainer.train()
    checkpoint = last_checkpoint(str(tmp_path))
    assert checkpoint == str(tmp_path / "checkpoint-10")
    assert run_state(checkpoint) == {"format": 1, "run": "run_1", "attempt": 1, "step": 10}
    second = FakeRun()
    again = private(tmp_path, second, save_strategy="steps", save_steps=5, optim="adamw_torch")
    again.train(resume_from_checkpoint=True)
    assert second.asked == [STEP] * 6
    assert (again.state.global_step, second.expected_steps) == (16, 6)


def test_training_whose_charges_are_in_doubt_does_not_begin(tmp_path: Path) -> None:
    private(tmp_path, FakeRun(), max_steps=1, save_strategy="steps", save_steps=1).train()
    other = FakeRun(id="run_2")
    again = private(tmp_path, other, max_steps=2)
    before = weights(again.model)
    with pytest.raises(ValueError, match=r"charged to run_1, but this training to run_2.*client\.resume_run"):
        again.train(resume_from_checkpoint=True)
    again.args.gradient_accumulation_steps = 2
    with pytest.raises(UnsupportedTrainingError, match="gradient_accumulation_steps is 2 again"):
        again.train()
    again.args.gradient_accumulation_steps = 1
    again.callback_handler.callbacks.pop()
    with pytest.raises(UnsupportedTrainingError, match="asks nobody"):
        again.train()
    assert other.asked == []
    assert all(map(torch.equal, before, weights(again.model)))


def test_only_whole_checkpoints_of_charged_trainings_are_resumed(tmp_path: Path) -> None:
    plain = trainer_of(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    plain.train()
    assert last_checkpoint(str(tmp_path)) is None
    trainer = private(tmp_path, FakeRun())
    with pytest.raises(ValueError, match="was not written by a charged training"):
        trainer.train(resume_from_checkpoint=True)
    trainer.save_model(str(tmp_path / "checkpoint-3"))
    assert run_state(str(tmp_path / "checkpoint-3"))["run"] == "run_1"
    assert last_checkpoint(str(tmp_path)) is None, "the Trainer was killed before it wrote its own state"
    (tmp_path / "checkpoint-2" / RUN_FILE).write_text("{}")
    with pytest.raises(ValueError, match=r"not what run\.state_dict\(\) returned"):
        run_state(str(tmp_path / "checkpoint-2"))


def test_noise_is_that_of_charge(tmp_path: Path) -> None:
    after, records = After(), sentences(targets=False)
    trainer = private(tmp_path, FakeRun(), records=records, max_steps=20, noise_multiplier=4.0, callbacks=[after])
    ends = [weights(trainer.model)]
    trainer.train()
    ends += [moved for _, moved in after.seen]
    steps = [((new - old) / 0.1).flatten() for one, two in pairwise(ends) for old, new in zip(one, two, strict=True)]
    noise = torch.cat(steps)
    assert len(noise) > 2_500
    assert float(noise.std()) == pytest.approx(4.0 / BATCH, rel=0.07)


def test_model_that_is_made_for_each_training_is_private_each_time(tmp_path: Path) -> None:
    run = FakeRun()
    trainer = private(tmp_path, run, max_steps=2)
    made = []

    def model_init() -> Any:
        made.append(gpt2())
        return made[-1]

    trainer.model_init = model_init
    trainer.train()
    trainer.train()
    assert trainer.model is made[1] is not made[0]
    assert len(run.asked) == 4
    assert isinstance(trainer.optimizer.optimizer, DPOptimizer)


def test_run_of_a_loaded_model_declares_the_run_that_trained_it(tmp_path: Path) -> None:
    base = trainer_of(tmp_path / "base", gpt2(lora=False))
    make_private(base, FakeRun(), noise_multiplier=1.0, max_grad_norm=1.0)
    base.save_model()
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "base")
    assert origins_of(loaded) == origins_of(tmp_path / "base") == [RunOrigin("run_1")]
    told: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    undeclared = FakeRun(id="run_2")
    with pytest.raises(UnsupportedTrainingError, match=r"which run_1 has trained, and run_2 does not say"):
        make_private(trainer_of(tmp_path / "next", loaded), undeclared, **told)
    ledger, trainer = FakeLedger(), trainer_of(tmp_path / "next", loaded)
    create_run(LedgerClient(URL, KEY, transport=ledger), trainer, "next", budget="letters/team")
    assert ledger.bodies[0]["starts_from"] == [{"run": "run_1"}]
    create_run(LedgerClient(URL, KEY, transport=ledger), trainer, "next", budget="letters/team", starts_from=[])
    assert ledger.bodies[1]["starts_from"] == []
    for run in (FakeRun(id="run_2", starts_from=[{"run": "run_1"}]), FakeRun()):
        make_private(trainer_of(tmp_path / "next", loaded), run, **told)


def test_adapters_are_known_by_their_folder(tmp_path: Path) -> None:
    trainer = private(tmp_path, FakeRun())
    trainer.save_model(str(tmp_path / "adapters"))
    assert origins_of(tmp_path / "adapters") == [RunOrigin("run_1")]
    assert origins_of(trainer.model) == [], "its base was made with random weights"


def test_other_models_are_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "public"
    gpt2(lora=False).save_pretrained(folder)
    digest = sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    loaded = GPT2LMHeadModel.from_pretrained(folder)
    assert origins_of(loaded) == [ModelOrigin("public", digest)]
    assert origins_of(gpt2(lora=False)) == []
    make_private(trainer_of(tmp_path, loaded), FakeRun(), noise_multiplier=1.0, max_grad_norm=1.0)
    snapshot = tmp_path / "hub" / "models--openai--gpt2" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    loaded.name_or_path, loaded.config._commit_hash = "openai/gpt2", "abc"
    assert origins_of(loaded) == [ModelOrigin("openai/gpt2", digest)]
    loaded.name_or_path = "openai/gpt3"
    with pytest.raises(ValueError, match=r"weights of openai/gpt3 are not in one file here"):
        origins_of(loaded)
