"""A real Lightning trainer with Opacus' optimizer, whose steps the ledger admits or refuses."""

# ruff: noqa: ANN401 - two packages with the same classes

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import wrap_data_loader
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from epsilon_ledger import composed, gaussian, poisson_sampled
from epsilon_ledger.lightning import LedgerCallback, split_batches
from epsilon_ledger.opacus import UnsupportedTrainingError
from tests.frameworks.conftest import STEP, Q, Training, make_private, small_loader
from tests.sdk.fake_ledger import FakeRun

pytestmark = pytest.mark.filterwarnings(
    "ignore:You defined a `validation_step`", "ignore:Using ModelCheckpoint with manual optimization"
)


def fit(
    package: Any, training: Training, *callbacks: Any, automatic: bool = True, validated: Any = None, **terms: Any
) -> Any:
    class Model(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = automatic
            self.net = training.model

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor | None:
            x, y = batch
            if automatic:
                return training.criterion(self.net(x), y)
            found: Any = self.optimizers()
            optimizers = found if isinstance(found, list) else [found]
            for optimizer in optimizers:
                optimizer.zero_grad()
            training.criterion(self.net(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
            return None

        def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
            training.criterion(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return training.optimizer

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = package.Trainer(callbacks=list(callbacks), accelerator="cpu", **{"max_epochs": 3} | quiet | terms)
    trainer.fit(Model(), training.loader, validated)
    return trainer


@pytest.mark.parametrize("package", [lightning, pytorch_lightning])
def test_every_step_of_fit_asks(engine: PrivacyEngine, run: FakeRun, package: Any) -> None:
    training = make_private(engine)
    before = training.parameters()
    trainer = fit(package, training, LedgerCallback(run))
    assert run.asked == [STEP] * 24
    assert float(trainer.callback_metrics["epsilon"]) == run.epsilon == 6.0
    assert float(trainer.callback_metrics["used"]) == pytest.approx(run.used)
    assert 0 < run.used < 1
    assert not any(map(torch.equal, before, training.parameters()))


@pytest.mark.parametrize("package", [lightning, pytorch_lightning])
def test_refusal_ends_fit_and_leaves_parameters(engine: PrivacyEngine, package: Any) -> None:
    run = FakeRun(capacity=10)
    training = make_private(engine)
    callback = LedgerCallback(run)
    fit(package, training, callback, max_steps=10)
    after = training.parameters()
    assert (len(run.asked), callback.refusal) == (10, None)
    trainer = fit(package, training, callback)
    assert (len(run.asked), trainer.should_stop) == (10, True)
    assert callback.refusal is not None
    assert all(map(torch.equal, after, training.parameters()))


@pytest.mark.parametrize("automatic", [True, False])
def test_refused_step_is_not_counted(engine: PrivacyEngine, tmp_path: Path, *, automatic: bool) -> None:
    saved = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    terms: dict[str, Any] = {"automatic": automatic, "enable_checkpointing": True}
    callback = LedgerCallback(FakeRun(capacity=3))
    trainer = fit(lightning, make_private(engine), saved, callback, **terms)
    assert callback.refusal is not None
    assert trainer.global_step == 3
    assert {path.stem for path in tmp_path.iterdir()} == {f"step={step}" for step in (1, 2, 3)}


def test_validation_on_trained_batches_within_fit_does_not_stop_it(engine: PrivacyEngine, run: FakeRun) -> None:
    training = make_private(engine)
    fit(lightning, training, LedgerCallback(run), validated=training.loader, val_check_interval=2, max_epochs=2)
    assert run.asked == [STEP] * 16


def test_scheduler_that_is_made_within_fit_does_not_stop_it(engine: PrivacyEngine, run: FakeRun) -> None:
    class Scheduled(lightning.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's signature
            ExponentialLR(trainer.optimizers[0], 0.9)

    fit(lightning, make_private(engine), LedgerCallback(run), Scheduled(), max_epochs=1)
    assert run.asked == [STEP] * 8


def test_accumulated_batches_stop_fit(engine: PrivacyEngine, run: FakeRun) -> None:
    with pytest.raises(UnsupportedTrainingError, match="do not skip, prefetch or accumulate"):
        fit(lightning, make_private(engine), LedgerCallback(run), accumulate_grad_batches=2)
    assert run.asked == []


def test_shuffled_loader_is_turned_away_unless_it_is_said_how_to_charge_it(engine: PrivacyEngine, run: FakeRun) -> None:
    training = make_private(engine, small_loader(shuffle=True), poisson_sampling=False)
    with pytest.raises(UnsupportedTrainingError, match="does not draw Poisson samples"):
        fit(lightning, training, LedgerCallback(run))
    run.hear(neighboring_relation="replace_special")
    fit(lightning, training, LedgerCallback(run, sampling_probability=1.0), max_epochs=1)
    assert run.asked == [gaussian(1.0)] * 8


def test_fit_without_dp_optimizer_or_with_pieces_that_lightning_would_cut_off_is_turned_away(
    engine: PrivacyEngine, run: FakeRun
) -> None:
    training = make_private(engine)
    plain = Training(training.model, training.optimizer.original_optimizer, training.loader)
    with pytest.raises(ValueError, match="no DP optimizer to charge"):
        fit(lightning, plain, LedgerCallback(run))
    training.loader = wrap_data_loader(data_loader=training.loader, max_batch_size=3, optimizer=training.optimizer)
    with pytest.raises(UnsupportedTrainingError, match=r"ends an epoch after len.*lightning\.split_batches"):
        fit(lightning, training, LedgerCallback(run))
    assert run.asked == []


@pytest.mark.parametrize(("package", "workers"), [(lightning, 0), (pytorch_lightning, 2)])
def test_fit_in_pieces_releases_every_batch_once_and_whole(
    engine: PrivacyEngine, run: FakeRun, package: Any, workers: int
) -> None:
    training = make_private(engine, small_loader(workers=workers))
    training.loader = split_batches(training.loader, 3, training.optimizer)
    fit(package, training, LedgerCallback(run))
    assert run.asked == [STEP] * 24


def test_fit_that_ends_within_batch_is_not_gone_on_with(engine: PrivacyEngine, run: FakeRun) -> None:
    training = make_private(engine)
    training.loader.batch_sampler.sample_rate = 1.0
    training.loader = split_batches(training.loader, 1, training.optimizer)
    with pytest.raises(UnsupportedTrainingError, match="discard_batch"):
        fit(lightning, training, LedgerCallback(run), limit_train_batches=11)


def test_ghost_clipping_finds_module_of_fit(engine: PrivacyEngine, run: FakeRun) -> None:
    training = make_private(engine, grad_sample_mode="ghost")
    fit(lightning, training, LedgerCallback(run), automatic=False, max_epochs=1)
    assert run.asked == [STEP] * 8


LENGTHS: list[tuple[dict[str, Any], int]] = [
    ({"max_epochs": 3}, 24),
    ({"max_epochs": -1, "max_steps": 20}, 20),
    ({"max_epochs": 3, "max_steps": 10}, 10),
    ({"max_epochs": 3, "limit_train_batches": 4}, 12),
]


@pytest.mark.parametrize(("terms", "steps"), LENGTHS)
def test_fit_expects_its_steps(engine: PrivacyEngine, run: FakeRun, terms: dict[str, Any], steps: int) -> None:
    fit(lightning, make_private(engine), LedgerCallback(run), **terms)
    assert run.expected_steps == steps == len(run.asked)


class Sum(nn.ModuleList):
    """The sum of networks."""

    def forward(self, x: torch.Tensor) -> Any:
        return sum(part(x) for part in self)


def test_optimizers_that_share_batches_of_fit_are_charged_together(engine: PrivacyEngine, run: FakeRun) -> None:
    first = make_private(engine, loader := small_loader())
    second = make_private(engine, loader, noise_multiplier=2.0)
    both: Any = [first.optimizer, second.optimizer]
    training = Training(Sum([first.model, second.model]), both, first.loader)
    fit(lightning, training, LedgerCallback(run), automatic=False, max_epochs=2)
    assert run.asked == [poisson_sampled(Q, composed([gaussian(1.0), gaussian(2.0)]))] * 16
    assert run.expected_steps is None


def test_loader_that_is_made_anew_for_each_epoch_is_followed(engine: PrivacyEngine, run: FakeRun) -> None:
    class Data(lightning.LightningDataModule):
        def train_dataloader(self) -> Any:
            return loaders.pop()

    training = make_private(engine, loader := small_loader())
    loaders = [make_private(engine, loader).loader for _ in range(3)]
    data: Any = Data()
    training.loader = data
    fit(lightning, training, LedgerCallback(run), reload_dataloaders_every_n_epochs=1)
    assert (loaders, run.asked) == ([], [STEP] * 24)
