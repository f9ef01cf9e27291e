"""An Opacus accountant that answers from the ledger."""

from pathlib import Path

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant

from epsilon_ledger import BudgetExceededError, gaussian, poisson_sampled
from epsilon_ledger.opacus import LedgerAccountant, UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, make_private
from tests.sdk.fake_runs import BATCH, FakeRun, N

STEP = poisson_sampled(BATCH / N, gaussian(1.0))

pytestmark = HOOKS_WARN


@pytest.fixture
def accountant(engine: PrivacyEngine, fake_run: FakeRun) -> LedgerAccountant:
    made = LedgerAccountant(fake_run.as_run)
    engine.accountant = made
    return made


def test_accountant_of_optimizer_that_does_not_ask_stops_it(
    engine: PrivacyEngine, accountant: LedgerAccountant, fake_run: FakeRun
) -> None:
    training = make_private(engine)
    before = training.parameters()
    with pytest.raises(UnsupportedTrainingError, match=r"does not ask the ledger\. Call attach"):
        training.epoch()
    assert all(map(torch.equal, before, training.parameters()))
    assert (fake_run.asked, accountant.events) == ([], ())


@pytest.mark.parametrize("whom", ["engine", "optimizer", "both"])
def test_step_is_charged_once_whatever_is_attached(
    engine: PrivacyEngine, accountant: LedgerAccountant, fake_run: FakeRun, whom: str
) -> None:
    if whom != "optimizer":
        attach(engine, fake_run.as_run)
    training = make_private(engine)
    if whom != "engine":
        attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    steps = training.epoch()
    assert engine.accountant is accountant
    assert fake_run.asked == [STEP] * steps
    assert accountant.events == ({"event": STEP, "count": steps},)
    assert accountant.history == [(1.0, BATCH / N, steps)]
    assert len(accountant) == steps == fake_run.next_step


def test_loop_of_ones_own_asks_by_step(accountant: LedgerAccountant, fake_run: FakeRun) -> None:
    accountant.step(noise_multiplier=1.0, sample_rate=0.125)
    assert fake_run.asked == [STEP]
    assert len(accountant) == 1
    fake_run.capacity = 1
    with pytest.raises(BudgetExceededError):
        accountant.step(noise_multiplier=1.0, sample_rate=0.125)
    assert accountant.events == ({"event": STEP, "count": 1},)


def test_engine_reads_epsilon_from_ledger(
    engine: PrivacyEngine, accountant: LedgerAccountant, fake_run: FakeRun
) -> None:
    accountant.step(noise_multiplier=1.0, sample_rate=0.125)
    fake_run.state.epsilon = 0.75  # another process spent, too
    assert engine.get_epsilon(1e-5) == 0.75
    with pytest.raises(
        ValueError, match="answers at the run's delta, 1e-05, and for no plan at 1e-06: it has no client"
    ):
        engine.get_epsilon(1e-6)
    with pytest.raises(ValueError, match="its own orders"):
        accountant.get_epsilon(1e-5, alphas=[2, 3])


def test_checkpoint_keeps_what_was_seen_and_ledger_what_was_spent(
    engine: PrivacyEngine, fake_run: FakeRun, tmp_path: Path
) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    training.epoch()
    engine.save_checkpoint(path=tmp_path / "checkpoint.pt", module=training.model, optimizer=training.optimizer)
    training.epoch()
    engine.load_checkpoint(path=tmp_path / "checkpoint.pt", module=training.model, optimizer=training.optimizer)
    # The older checkpoint forgets eight steps; the ledger does not.
    assert engine.accountant.events == ({"event": STEP, "count": 8},)
    assert (len(engine.accountant), engine.get_epsilon(1e-5)) == (16, 2.0)


def test_state_of_another_run_or_another_accountant_is_turned_away(
    accountant: LedgerAccountant, fake_run: FakeRun
) -> None:
    accountant.step(noise_multiplier=1.0, sample_rate=0.125)
    state = accountant.state_dict()
    other = LedgerAccountant(FakeRun(id="run_2").as_run)
    with pytest.raises(ValueError, match="belongs to run_1, but the accountant to run_2"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="state_dict of rdp"):
        accountant.load_state_dict(create_accountant("rdp").state_dict())
    again = LedgerAccountant(fake_run.as_run)
    again.load_state_dict(state)
    assert (again.events, again.history) == (accountant.events, accountant.history)
