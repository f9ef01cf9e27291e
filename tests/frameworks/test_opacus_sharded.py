"""Each distributed optimizer of Opacus, FSDP's too, by two processes: one charge, and nothing left after a refusal."""

from typing import Any

import pytest
import torch

from epsilon_ledger import gaussian, poisson_sampled
from tests.frameworks import distributed_optimizers
from tests.frameworks.distributed_optimizers import BATCH, CAPACITY, KINDS, RECORDS
from tests.frameworks.ranks import run_ranks
from tests.sdk.fake_runs import LEAST_NOISE

OPTIMIZERS = {
    "flat": "DistributedDPOptimizer",
    "per layer": "SimpleDistributedPerLayerOptimizer",
    "ghost": "DistributedDPOptimizerFastGradientClipping",
    "fsdp": "FSDPOptimizerFastGradientClipping",
    "fsdp without wrapper": "FSDPOptimizerFastGradientClipping",
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(distributed_optimizers.__name__, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("kind", KINDS)
def test_rank_0_charges_step_of_all(ranks: list[dict[str, Any]], kind: str) -> None:
    assert [rank[kind]["optimizer"] for rank in ranks] == [OPTIMIZERS[kind]] * 2
    assert ranks[0][kind]["asked"] == [poisson_sampled(BATCH / RECORDS, gaussian(1.0))] * CAPACITY
    assert ranks[0][kind]["parameters"] == ranks[1][kind]["parameters"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_rank_moves_or_keeps_batch_after_refusal(ranks: list[dict[str, Any]], kind: str) -> None:
    for rank in ranks:
        assert rank[kind]["stopped"].startswith("BudgetExceededError")
        assert rank[kind]["unchanged"]
        assert rank[kind]["left"] == []


def test_sharded_noise_is_scaled_for_what_is_released(ranks: list[dict[str, Any]]) -> None:
    # The same records and parameters: what moves by FSDP must move as without it, where the noise is known to fit.
    for ghost, fsdp in zip(ranks[0]["sums"]["ghost"], ranks[0]["sums"]["fsdp"], strict=True):
        assert torch.tensor(fsdp).norm() > 0
        # Noise of 1e-3 clipping norms on a sum of up to 64 of them.
        assert torch.tensor(fsdp) == pytest.approx(torch.tensor(ghost), abs=2e-6)


@pytest.mark.parametrize(
    ("how", "why"),
    [("factor", "set_gradient_divide_factor"), ("sync", "set_requires_gradient_sync"), ("copies", "not sharded over")],
)
def test_sharding_that_noise_does_not_fit_is_refused(ranks: list[dict[str, Any]], how: str, why: str) -> None:
    for rank in ranks:
        assert rank["refusals"][how].startswith("UnsupportedTrainingError")
        assert why in rank["refusals"][how]


def test_rank_with_nan_or_another_batch_stops_all(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["not finite"] for rank in ranks)
    assert first == second
    # A part without records has no NaN: then the ledger is asked.
    assert first.count("UnsupportedTrainingError") >= 2
    for rank in ranks:
        assert rank["ahead"].startswith("UnsupportedTrainingError")


def test_all_ranks_get_noise_of_rank_0_and_no_other_has_run(ranks: list[dict[str, Any]]) -> None:
    noise = [rank["calibrated"][0] for rank in ranks]
    assert noise[0] == noise[1] == pytest.approx(LEAST_NOISE, rel=1e-3)
    assert ranks[1]["calibrated"][1] == "Rank 0 asks for all: on rank 1 give None for the run."
