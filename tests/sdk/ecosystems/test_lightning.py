"""A real Lightning trainer with Opacus' optimizer, whose steps the ledger admits or refuses."""

# ruff: noqa: ANN401 - two packages with the same classes

from typing import Any

import lightning.pytorch as lightning
import pytest
import pytorch_lightning
import torch
from opacus import PrivacyEngine
from torch import nn

from epsilon_ledger import LedgerUnavailableError, gaussian, poisson_sampled
from epsilon_ledger.lightning import LedgerCallback
from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.sdk.ecosystems.conftest import BATCH, HOOKS_WARN, FakeRun, N, Training, make_private, small_loader

STEP = poisson_sampled(BATCH / N, gaussian(1.0))

pytestmark = [
    HOOKS_WARN,
    # Lightning walks trees as torch did before 2.13.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    # Its advice for faster loaders, which these trainings are too small for.
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers:UserWarning"),
]


def fit(package: Any, training: Training, *callbacks: Any, **terms: Any) -> Any:
    class Model(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = training.model

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return training.optimizer

    trainer = package.Trainer(
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 3, **terms},
    )
    trainer.fit(Model(), training.loader)
    return trainer


@pytest.mark.parametrize("package", [lightning, pytorch_lightning])
def test_every_step_of_a_fit_asks(engine: PrivacyEngine, fake_run: FakeRun, package: Any) -> None:
    training = make_private(engine)
    before = training.parameters()
    trainer = fit(package, training, LedgerCallback(fake_run.as_run))
    assert fake_run.asked == [STEP] * 24
    assert float(trainer.callback_metrics["epsilon"]) == fake_run.epsilon == 3.0
    assert not any(map(torch.equal, before, training.parameters()))


@pytest.mark.parametrize("package", [lightning, pytorch_lightning])
def test_a_refusal_ends_the_fit_and_leaves_the_parameters(engine: PrivacyEngine, package: Any) -> None:
    run = FakeRun(capacity=10)
    training = make_private(engine)
    callback = LedgerCallback(run.as_run)
    fit(package, training, callback, max_steps=10)
    after = training.parameters()
    assert (len(run.asked), callback.refusal) == (10, None)
    trainer = fit(package, training, callback)
    assert (len(run.asked), trainer.should_stop) == (10, True)
    assert callback.refusal is not None
    assert all(map(torch.equal, after, training.parameters()))


def test_other_errors_go_through(engine: PrivacyEngine, fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(**_: object) -> None:
        raise LedgerUnavailableError("no answer")

    monkeypatch.setattr(fake_run, "authorize", unavailable)
    with pytest.raises(LedgerUnavailableError):
        fit(lightning, make_private(engine), LedgerCallback(fake_run.as_run))


def test_an_engine_that_is_attached_already_asks_once(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    fit(lightning, make_private(engine), LedgerCallback(fake_run.as_run), max_epochs=1)
    assert fake_run.asked == [STEP] * 8


def test_a_fit_without_a_dp_optimizer_is_stopped(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine)
    training.optimizer = training.optimizer.original_optimizer
    with pytest.raises(ValueError, match="no DP optimizer to charge"):
        fit(lightning, training, LedgerCallback(fake_run.as_run))


def test_a_shuffled_loader_is_turned_away_unless_it_is_said_how_to_charge_it(
    engine: PrivacyEngine, fake_run: FakeRun
) -> None:
    training = make_private(engine, small_loader(shuffle=True), poisson_sampling=False)
    with pytest.raises(UnsupportedTrainingError, match="does not draw Poisson samples"):
        fit(lightning, training, LedgerCallback(fake_run.as_run))
    fake_run.state.neighboring_relation = "replace_special"
    fit(lightning, training, LedgerCallback(fake_run.as_run, sampling_probability=1.0), max_epochs=1)
    assert fake_run.asked == [gaussian(1.0)] * 8
