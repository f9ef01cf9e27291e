"""Random interleavings of all that a training loop does and suffers: releases, draws and charges stay equal.

`make soak` runs them long: 50 rounds are 2,000 interleavings in one process, 300 of two processes, and 150 fits.
"""

import os
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from opacus.optimizers import DPOptimizer

from epsilon_ledger import LedgerError
from epsilon_ledger.lightning import LedgerCallback, split_batches
from tests.frameworks import distributed_canaries
from tests.frameworks.canaries import DRAWS, KINDS, Bench, WrongReleaseError
from tests.frameworks.conftest import HOOKS_WARN
from tests.frameworks.interleavings import ACTIONS, discard, interleave
from tests.frameworks.ranks import run_ranks
from tests.frameworks.test_lightning import trainer_of

ROUNDS = int(os.environ.get("RELIABILITY_ROUNDS", "1"))
INTERLEAVINGS = 40
DISTRIBUTED = 6
FITS = 3
SHAPES: list[dict[str, int]] = [{}, {}, {}, {"together": 2}, {"releases": 2}]

pytestmark = [
    HOOKS_WARN,
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers:UserWarning"),
]


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_releases_draws_and_charges_are_equal_and_no_record_is_in_a_sum_twice(turn: int) -> None:
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


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_two_processes_release_their_parts_of_one_draw(turn: int, tmp_path: Path) -> None:
    answer = run_ranks(distributed_canaries.__name__, tmp_path, turn * DISTRIBUTED, DISTRIBUTED)
    for one, other in zip(*answer, strict=True):
        assert len(one["sums"]) == len(other["sums"]) == one["charged"], one["seed"]
        assert one["in the last epoch"] == other["in the last epoch"] == DRAWS
        for parts in zip(one["sums"], other["sums"], strict=True):
            assert max(map(sum, zip(*parts, strict=True))) <= 1, one["seed"]
    assert sum(one["refused"] for one in answer[0]) == sum(other["refused"] for other in answer[1]) > 0


class Net(lightning.LightningModule):
    """The networks of a bench, trained by hand."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.bench = bench
        self.nets = torch.nn.ModuleList(bench.models)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        x, y = batch
        for place, optimizer in enumerate(self.bench.optimizers):
            if self.bench.dice.random() < 0.05:
                self.bench.run.fault = self.bench.dice.choice(("unavailable", "refused"))
            optimizer.zero_grad()
            self.bench.criteria[place](self.nets[place](x), y).backward()
            # Lightning's own wrapper, which leads to the step that the callback has put in place.
            wrapped: Any = self.optimizers()
            (wrapped[place] if isinstance(wrapped, list) else wrapped).step()

    def configure_optimizers(self) -> list[DPOptimizer]:
        return self.bench.optimizers


def fits(seed: int) -> Bench:
    """Fit again and again with random terms, and then ordinarily."""
    dice = random.Random(seed)  # noqa: S311 - to do the same again
    torch.manual_seed(seed)
    bench = Bench(dice, ("flat", "per layer")[seed % 2], together=1 + seed % 3 // 2, workers=2 if seed % 10 == 9 else 0)
    with bench.draws.watched():
        for turn in range(4):
            terms: dict[str, Any] = {"max_epochs": dice.randrange(1, 4), "max_steps": dice.choice((-1, -1, 7))}
            terms["limit_train_batches"] = dice.choice((1.0, 1.0, 1.0, 5))
            size = dice.choice((0, 1, 2))
            if turn == 3:
                bench.run.fault, terms = "", {"max_epochs": 2}
                dice.random = lambda: 1.0  # type: ignore[method-assign] # no more faults
            discard(bench)
            loader = split_batches(bench.loader, size, bench.optimizers[0]) if size else bench.loader
            before = bench.sums
            try:
                trainer_of(lightning, LedgerCallback(bench.run.as_run), **terms).fit(Net(bench), loader)
            except LedgerError as error:
                bench.trace.append(type(error).__name__)
    if bench.sums - before != 2 * DRAWS * bench.together:
        raise WrongReleaseError(f"{bench.sums - before} releases in an ordinary fit: {bench.trace}")
    return bench


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_a_fit_of_lightning_releases_each_draw_once(turn: int) -> None:
    for seed in range(turn * FITS, (turn + 1) * FITS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert fits(seed).largest == 1
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error
