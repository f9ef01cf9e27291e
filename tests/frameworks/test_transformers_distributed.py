"""Two processes with a Trainer each train together, and ask once for both."""

from typing import Any

import pytest

from epsilon_ledger import gaussian, poisson_sampled
from tests.frameworks import distributed_trainer
from tests.frameworks.ranks import run_ranks

IMPORTED = ("tests.frameworks.language_models", "epsilon_ledger.transformers")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trainers")
    return run_ranks(distributed_trainer.__name__, folder, 5, folder / "output", imported=IMPORTED)


def test_rank_0_asks_for_whole_batch_of_both(ranks: list[dict[str, Any]]) -> None:
    # 2 records, 4 times, in 2 processes, of 64.
    assert ranks[0]["asked"] == [poisson_sampled(16 / 64, gaussian(1.0))] * 5
    assert ranks[1]["asked"] is None
    assert {rank["optimizer"] for rank in ranks} == {"DistributedDPOptimizer"}
    assert {rank["wrapper"] for rank in ranks} == {"DifferentiallyPrivateDistributedDataParallel"}
    assert max(rank["largest"] for rank in ranks) == 2


def test_refusal_ends_both_with_same_parameters(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "refused" in rank["refused"]
        assert rank["steps"] == [5, 8]
        assert rank["moved"]
    assert ranks[0]["after"] == ranks[1]["after"]


def test_checkpoint_has_run_of_rank_0(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["state"] == {"format": 1, "run": "run_1", "attempt": 1, "step": 3}
