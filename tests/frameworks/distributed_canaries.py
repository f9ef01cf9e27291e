"""One rank of many distributed trainings: `python distributed_canaries.py RANK STORE FIRST_SEED INTERLEAVINGS`.

Prints a JSON line: what it released of each training, what it was charged, and how often it was refused.
"""

import json
import random
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader

from epsilon_ledger import Event, LedgerError
from epsilon_ledger.opacus import attach, discard_batch
from tests.frameworks.canaries import DRAWS, KINDS, RECORDS, Bench, FarLoss, WrongReleaseError, shares
from tests.frameworks.ranks import RANKS


class RankBench(Bench):
    """One rank of a training; the ranks throw the same dice for what they do, and their own for what they draw."""

    def __init__(self, rank: int, dice: random.Random, kind: str) -> None:
        self.rank = rank
        self.sums_of_rank: list[list[int]] = []
        self.refused = 0
        self.whole = True
        self.begun = 0
        super().__init__(dice, kind)
        order = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(0)).tolist()
        self.draws.records = order[rank::RANKS]

    def _made(self, engine: PrivacyEngine, loader: DataLoader[Any]) -> Any:  # noqa: ANN401 - as Opacus' make_private
        model = DifferentiallyPrivateDistributedDataParallel(nn.Linear(RECORDS, 1))
        return engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-6),
            data_loader=loader,
            noise_multiplier=1.0,
            criterion=FarLoss(),
            **KINDS[self.kind],
        )

    def attach(self) -> None:
        run = self.run.as_run if self.rank == 0 else None
        attach(self.optimizers[0], run, data_loader=self.loader, module=self.models[0])

    def _watch(self, place: int, optimizer: DPOptimizer) -> None:
        """Look before the ranks add up their parts, on most of them in place."""
        plain = optimizer.reduce_gradients

        def reduce_gradients() -> None:
            self.note(place, shares(optimizer))
            plain()

        optimizer.reduce_gradients = reduce_gradients

    def note(self, place: int, counts: list[int]) -> None:
        if self.rank:  # rank 0 alone is charged
            self.run.asked += [{}] * (self.sums + 1 - len(self.run.asked))
        super().note(place, counts)
        self.sums_of_rank.append(counts)

    def compare(self, event: Event, rate: float, noise: float) -> None:
        if self.rank == 0:
            super().compare(event, rate, noise)

    def step_draw(self) -> None:
        """Step all pieces of the next batch: one release of all ranks, or none of any."""
        if not self.fetch():
            return
        draw = self.draw
        try:
            while True:
                self.step()
                if self.left == 0:
                    return
                self.fetch()
        except LedgerError:
            self.refused += 1
            # The other rank goes on with the next batch; so must this one.
            while self.draw == draw and self.left:
                self.fetch()

    def attempt(self, attempt: Callable[[], object]) -> None:
        """Do what each rank must be stopped in."""
        try:
            attempt()
        except LedgerError:
            self.refused += 1
        else:
            raise WrongReleaseError("a rank went on where another one had to stop")


def one_rank_is_ahead(bench: RankBench) -> None:
    """Let one rank step the next batch, and the other one that after it."""
    ahead = bench.dice.randrange(RANKS) == bench.rank
    fetched = max(0, bench.draw + 1 - bench.begun)
    if bench.whole and fetched <= DRAWS - 2:
        bench.fetch()
        if ahead:
            bench.fetch()
        bench.attempt(bench.step)
        if not ahead:
            bench.fetch()


def one_rank_has_another_gradient(bench: RankBench) -> None:
    """Let one rank step more records than it drew."""
    other = bench.dice.randrange(RANKS) == bench.rank
    if bench.whole and bench.fetch() and bench.batch is not None:
        x, y = bench.batch
        if other:
            bench.batch = torch.cat((x, 1e4 * torch.eye(RECORDS))), torch.cat((y, torch.full((RECORDS, 1), 1e6)))
        bench.attempt(bench.step)


def begin(bench: RankBench, *, whole: bool) -> None:
    """Begin to iterate, in pieces or not."""
    bench.whole, bench.begun = whole, len(bench.draws.sets)
    bench.begin(0 if whole else 1)


def again(bench: RankBench) -> None:
    """Step a whole batch a second time, on all ranks."""
    if bench.whole and bench.fetch():
        bench.step()
        bench.attempt(bench.step)


ACTIONS: list[tuple[int, Callable[[RankBench], object]]] = [
    (10, RankBench.step_draw),
    (2, lambda bench: begin(bench, whole=True)),
    (3, lambda bench: begin(bench, whole=False)),
    (2, lambda bench: setattr(bench.run, "fault", "unavailable")),
    (2, one_rank_is_ahead),
    (2, one_rank_has_another_gradient),
    (1, again),
    (1, lambda bench: discard_batch(bench.optimizers[0])),
]


def interleave(rank: int, seed: int, kind: str) -> dict[str, Any]:
    dice = random.Random(seed)  # noqa: S311 - to do the same again
    torch.manual_seed(seed)
    bench = RankBench(rank, dice, kind)
    torch.manual_seed(2 * seed + rank)
    with bench.draws.watched():
        begin(bench, whole=dice.random() < 0.5)
        for _, action in dice.choices(ACTIONS, [weight for weight, _ in ACTIONS], k=12):
            try:
                action(bench)
            except LedgerError:
                bench.refused += 1
        bench.run.fault = ""
        discard_batch(bench.optimizers[0])
        before = bench.sums
        begin(bench, whole=dice.random() < 0.5)
        for _ in range(DRAWS):
            bench.step_draw()
    return {
        "seed": seed,
        "sums": bench.sums_of_rank,
        "in the last epoch": bench.sums - before,
        "charged": len(bench.run.asked),
        "refused": bench.refused,
    }


def main(rank: int, store: str, first: int, count: int) -> list[dict[str, Any]]:
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=20), world_size=RANKS, rank=rank)
    answer = [interleave(rank, seed, list(KINDS)[seed % 3]) for seed in range(first, first + count)]
    dist.destroy_process_group()
    return answer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))  # noqa: T201
