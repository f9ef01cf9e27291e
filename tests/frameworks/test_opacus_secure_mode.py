"""Secure mode: its generator makes all noise and samples; the adapter leaves both as they are."""

from unittest.mock import patch

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import optimizer as opacus_noise

from epsilon_ledger import gaussian, poisson_sampled
from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, make_private
from tests.frameworks.test_opacus_clipping import ADAPTIVE
from tests.sdk.fake_runs import BATCH, FakeRun, N

pytestmark = HOOKS_WARN


@pytest.fixture
def secure(engine: PrivacyEngine) -> PrivacyEngine:
    """An engine in secure mode, with torch's generator in the place of torchcsprng's, which no current torch has."""
    engine.secure_mode, engine.secure_rng = True, torch.Generator().manual_seed(5)
    return engine


def test_secure_generator_makes_all_noise_and_samples(secure: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(secure, fake_run.as_run)
    training = make_private(secure)
    assert training.optimizer.generator is training.loader.batch_sampler.generator is secure.secure_rng
    assert training.optimizer.secure_mode
    with patch.object(opacus_noise.torch, "normal", wraps=torch.normal) as normal:
        steps = training.epoch()
    # Each parameter's noise: one value thrown away, and the sum of four.
    assert normal.call_count == steps * len(training.optimizer.params) * 5
    assert all(call.kwargs["generator"] is secure.secure_rng for call in normal.call_args_list)
    assert fake_run.asked == [poisson_sampled(BATCH / N, gaussian(1.0))] * steps


def test_noise_of_count_that_is_not_secure_is_refused(secure: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(secure, fake_run.as_run)
    training = make_private(secure, **ADAPTIVE)
    with pytest.raises(UnsupportedTrainingError, match="count from torch's default generator"):
        training.epoch()
    assert (training.is_unchanged(), fake_run.asked) == (True, [])
