"""Two processes that train together ask once for both."""

from typing import Any

import pytest

from epsilon_ledger import gaussian, poisson_sampled
from tests.frameworks import distributed_training
from tests.frameworks.ranks import run_ranks
from tests.sdk.fake_runs import LEAST_NOISE


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(distributed_training.__name__, tmp_path_factory.mktemp("gloo"), 3)


def test_rank_0_asks_for_both(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["asked"] == [poisson_sampled(0.125, gaussian(1.0))] * 3
    assert ranks[1]["asked"] is None


def test_a_refusal_stops_both_before_the_update(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["stopped"] == "BudgetExceededError"
        assert rank["before"] == rank["after"]
    assert ranks[0]["after"] == ranks[1]["after"]


def test_a_nan_on_one_rank_stops_both(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["not finite"] == ranks[1]["not finite"]
    # A part without records has no NaN: then the ledger refuses.
    assert set(ranks[0]["not finite"]) <= {"UnsupportedTrainingError", "BudgetExceededError"}
    assert ranks[0]["not finite"].count("UnsupportedTrainingError") > 2


def test_both_get_the_noise_that_rank_0_finds(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["calibrated"] == ranks[1]["calibrated"] == pytest.approx(LEAST_NOISE, rel=1e-3)


def test_a_second_run_is_turned_away(ranks: list[dict[str, Any]]) -> None:
    assert ranks[1]["second"] == "Rank 0 asks for all: on rank 1 give None for the run."
