"""Random interleavings of all that a training loop does and suffers: releases, draws and charges stay equal.

`make soak` runs them long: 50 rounds are 2,000 interleavings.
"""

import os
from collections import Counter

import pytest

from tests.frameworks.canaries import KINDS
from tests.frameworks.conftest import HOOKS_WARN
from tests.frameworks.interleavings import ACTIONS, interleave

ROUNDS = int(os.environ.get("RELIABILITY_ROUNDS", "1"))
INTERLEAVINGS = 40
SHAPES: list[dict[str, int]] = [{}, {}, {}, {"together": 2}, {"releases": 2}]

pytestmark = [
    HOOKS_WARN,
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers:UserWarning"),
]


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_releases_draws_and_charges_are_equal_and_no_record_is_in_sum_twice(turn: int) -> None:
    done: Counter[str] = Counter()
    largest = set()
    for seed in range(turn * INTERLEAVINGS, (turn + 1) * INTERLEAVINGS):
        kind, shape = list(KINDS)[seed % 3], SHAPES[seed // 3 % len(SHAPES)]
        workers = 2 if seed % INTERLEAVINGS == INTERLEAVINGS - 1 else 0
        bench = interleave(seed, kind, workers=workers, **shape)
        largest.add(bench.largest)  # 0 of one that came to release nothing
        done.update(bench.trace)
        done["releases"] += bench.sums
    assert {1} <= largest <= {0, 1}
    print(f"seeds from {turn * INTERLEAVINGS}: {dict(done)}")  # noqa: T201 - what was tried is part of the result
    assert {*ACTIONS, "UnsupportedTrainingError", "LedgerUnavailableError", "BudgetExceededError"} <= set(done)
