"""Trainings in which every record is a canary: what a released sum holds of each, and which draws it is made of.

Record i has the input 1e4 e_i and a target far away, so that its gradient, clipped, is C e_i: component i of a sum
before its noise is C times the number of times that the record is in it.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import BudgetExceededError, Event, LedgerUnavailableError, Problem
from epsilon_ledger.opacus import UnsupportedTrainingError, attach, discard_batch
from tests.sdk.ecosystems.conftest import FakeRun
from tests.sdk.fake_ledger import REFUSAL

RECORDS = 12
BATCH = 2
DRAWS = RECORDS // BATCH
NORM = 0.5
KINDS: dict[str, dict[str, Any]] = {
    "flat": {"max_grad_norm": NORM},
    "per layer": {"clipping": "per_layer", "max_grad_norm": [NORM, NORM]},
    "ghost": {"max_grad_norm": NORM, "grad_sample_mode": "ghost"},
}
Batch = tuple[torch.Tensor, torch.Tensor]


class WrongReleaseError(AssertionError):
    """Something was released that was not charged for, or a record more often than once."""


class FarLoss(nn.MSELoss):
    """The squared error of each record, whether or not the mean is taken."""

    def forward(self, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return super().forward(found.flatten(), wanted.flatten())


@dataclass
class Draws:
    """What the samplers of a training drew, seen where they throw their dice."""

    sets: list[frozenset[int]] = field(default_factory=list)
    records: list[int] = field(default_factory=lambda: list(range(RECORDS)))
    rate: Callable[[], float] = lambda: BATCH / RECORDS

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note each throw of as many dice as there are records."""
        plain = torch.rand

        def rand(*size: int, **terms: object) -> torch.Tensor:
            thrown = plain(*size, **terms)
            if size == (len(self.records),):
                drawn = (thrown < self.rate()).nonzero().flatten().tolist()
                self.sets.append(frozenset(self.records[place] for place in drawn))
            return thrown

        torch.rand = rand
        try:
            yield
        finally:
            torch.rand = plain


@dataclass
class FaultyRun(FakeRun):
    """A run that does not answer, or refuses, when it is told to."""

    fault: str = ""

    def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        fault, self.fault = self.fault, ""
        if fault == "unavailable":
            raise LedgerUnavailableError("no answer")
        if fault == "refused":
            raise BudgetExceededError(Problem(403, "budget_exceeded", "", "", REFUSAL))
        super().authorize(count, event=event)


def canary_loader(workers: int = 0) -> DataLoader[Any]:
    x, y = 1e4 * torch.eye(RECORDS), torch.full((RECORDS, 1), 1e6)
    return DataLoader(TensorDataset(x, y), BATCH, num_workers=workers)


def shares(optimizer: DPOptimizer) -> list[int]:
    """How often each record is in the sum that an optimizer releases."""
    found = optimizer.params[0].summed_grad.flatten() / -NORM
    whole = found.round()
    if not torch.allclose(found, whole, atol=1e-3):
        raise WrongReleaseError(f"not a sum of clipped canaries: {found.tolist()}")
    return [int(share) for share in whole.tolist()]


class Bench:
    """One training, and all that it released.

    Args:
        dice: decides everything.
        kind: how gradients are clipped.
        together: how many optimizers step each batch, charged as one event.
        releases: how often each of them steps a batch.
        workers: of the loader.
    """

    def __init__(
        self, dice: random.Random, kind: str, *, together: int = 1, releases: int = 1, workers: int = 0
    ) -> None:
        self.dice, self.kind, self.together, self.releases = dice, kind, together, releases
        self.run = FaultyRun(capacity=10**9)
        self.draws = Draws()
        self.released: Counter[tuple[int, int]] = Counter()  # by optimizer and draw
        self.sums = 0
        self.largest = 0
        self.trace: list[str] = []
        self.broken = False
        """Whether Opacus' module holds what a backward pass that it refused has left, and gives no gradients again."""
        loader = canary_loader(workers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = PrivacyEngine(accountant="rdp")
            made = [self._made(engine, loader) for _ in range(together)]
        self.models = [item[0] for item in made]
        self.optimizers: list[DPOptimizer] = [item[1] for item in made]
        self.criteria = [item[2] if len(item) == 4 else FarLoss() for item in made]
        self.loader: DataLoader[Any] = made[0][-1]
        self.draws.rate = lambda: float(self.loader.batch_sampler.sample_rate)
        self.attach()
        for place, optimizer in enumerate(self.optimizers):
            self._watch(place, optimizer)
        self.batches: Iterator[Batch] = iter(())
        self.drawn_by: list[int] = []  # the draw of each piece that is to come
        self.batch: Batch | None = None
        self.draw = -1
        self.left = 0  # how many of its records are still to come
        self.whole = True

    def _made(self, engine: PrivacyEngine, loader: DataLoader[Any]) -> Any:  # noqa: ANN401 - as Opacus' make_private
        model = nn.Linear(RECORDS, 1)
        return engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-6),
            data_loader=loader,
            noise_multiplier=1.0,
            criterion=FarLoss(),
            **KINDS[self.kind],
        )

    def attach(self) -> None:
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            # Alone first: what is attached together later replaces it.
            module = model if self.kind == "ghost" else None
            attach(optimizer, self.run.as_run, data_loader=self.loader, module=module)
        attach(self.optimizers, self.run.as_run, data_loader=self.loader, releases_per_sample=self.releases)

    def _watch(self, place: int, optimizer: DPOptimizer) -> None:
        """Look at what is released where nothing can be held back any more: in the optimizer under Opacus'."""
        plain = optimizer.original_optimizer.step

        def step(*arguments: object) -> object:
            self.note(place, shares(optimizer))
            return plain(*arguments)

        optimizer.original_optimizer.step = step

    def note(self, place: int, counts: list[int]) -> None:
        self.sums += 1
        self.largest = max(self.largest, *counts)
        held = frozenset(record for record, count in enumerate(counts) if count)
        if max(counts) > 1 or min(counts) < 0:
            raise WrongReleaseError(f"records at more than C: {counts}")
        free = [
            draw
            for draw in (self.draw, *range(len(self.draws.sets)))
            if draw >= 0 and self.draws.sets[draw] == held and self.released[place, draw] < self.releases
        ]
        if not free:
            raise WrongReleaseError(f"{sorted(held)} is no draw, or was released before; at hand was {self.draw}")
        self.released[place, free[0]] += 1
        charged, draws = len(self.run.asked), {draw for (_, draw), count in self.released.items() if count}
        if charged != len(draws):
            raise WrongReleaseError(f"{len(draws)} draws released and {charged} charged")

    # What a training loop does, and what goes wrong in one.

    def begin(self, size: int = 0) -> None:
        """Begin to iterate the loader, in pieces if a size is given."""
        loader, before = self.loader, len(self.draws.sets)
        if size:
            manager = BatchMemoryManager(data_loader=loader, max_physical_batch_size=size, optimizer=self.optimizers[0])
            with manager as loader:
                pass
        self.batches = self._numbered(iter(loader), before, size)

    def _numbered(self, batches: Iterator[Batch], draw: int, size: int) -> Iterator[Batch]:
        self.left = 0
        for place, batch in enumerate(batches):
            if self.left == 0:
                self.draw = draw if place == 0 else self.draw + 1
                self.left = len(self.draws.sets[self.draw])
            self.left -= len(batch[0]) if size else self.left
            yield batch

    def fetch(self) -> bool:
        self.batch = next(self.batches, None)
        return self.batch is not None

    def backward(self, place: int, *, clean: bool = True) -> None:
        assert self.batch is not None
        x, y = self.batch
        if clean:
            self.optimizers[place].zero_grad()
        self.criteria[place](self.models[place](x), y).backward()

    def step(self) -> None:
        if self.batch is None:
            return
        for place in range(self.together):
            for _ in range(self.releases):
                self.backward(place)
                self.optimizers[place].step()

    def epoch(self, size: int = 0) -> None:
        """Do what every script does."""
        self.begin(size)
        while self.fetch():
            self.step()


EXPECTED = (UnsupportedTrainingError, LedgerUnavailableError, BudgetExceededError)


def step_next(bench: Bench) -> None:
    """Do what a loop does each time; without a next batch, step the last one again."""
    bench.fetch()
    bench.step()


def discard(bench: Bench) -> None:
    """Give up what is not released."""
    for optimizer in bench.optimizers:
        discard_batch(optimizer)


def backward(bench: Bench) -> None:
    """Go backward and no further, with or without clearing gradients before."""
    if bench.batch is not None:
        bench.backward(0, clean=bench.dice.random() < 0.5)


def cut_by_hand(bench: Bench) -> None:
    """Step a batch in two halves, as scripts without a BatchMemoryManager do."""
    if bench.fetch() and bench.batch is not None:
        x, y = bench.batch
        half = len(x) // 2
        bench.optimizers[0].signal_skip_step(do_skip=True)
        for part in ((x[:half], y[:half]), (x[half:], y[half:])):
            bench.batch = part
            bench.backward(0)
            bench.optimizers[0].step()


def one_of_two(bench: Bench) -> None:
    """Step one optimizer only, as alternating trainings do."""
    place = bench.dice.randrange(bench.together)
    if bench.fetch():
        bench.backward(place)
        bench.optimizers[place].step()


def two_at_once(bench: Bench) -> None:
    """Step two batches as if they were one."""
    first = bench.batch if bench.fetch() else None
    second = bench.batch if bench.fetch() else None
    if first is not None and second is not None and len(first[0]) and len(second[0]):
        bench.batch = torch.cat((first[0], second[0])), torch.cat((first[1], second[1]))
        bench.step()


ACTIONS: dict[str, tuple[int, Callable[[Bench], object]]] = {
    "step": (12, step_next),
    "leave a batch out": (2, lambda bench: bench.fetch()),
    "step again": (2, lambda bench: bench.step()),
    "begin": (2, lambda bench: bench.begin()),
    "begin in pieces": (4, lambda bench: bench.begin(bench.dice.choice((1, 2)))),
    "discard": (1, discard),
    "no answer": (2, lambda bench: setattr(bench.run, "fault", "unavailable")),
    "refusal": (1, lambda bench: setattr(bench.run, "fault", "refused")),
    "signal": (2, lambda bench: bench.dice.choice(bench.optimizers).signal_skip_step(bench.dice.random() < 0.8)),
    "zero": (1, lambda bench: bench.dice.choice(bench.optimizers).zero_grad()),
    "backward": (1, backward),
    "bare step": (1, lambda bench: bench.dice.choice(bench.optimizers).step()),
    "attach": (1, lambda bench: bench.attach()),
    "cut by hand": (1, cut_by_hand),
    "one of two": (1, one_of_two),
    "two at once": (1, two_at_once),
}


def interleave(seed: int, kind: str, *, together: int = 1, releases: int = 1, workers: int = 0) -> Bench:
    """Do the actions of a training loop in a random order, and then an ordinary epoch.

    Args:
        seed: of the order.
        kind: how gradients are clipped.
        together: how many optimizers there are.
        releases: how often each steps a batch.
        workers: of the loader.

    Returns:
        What was done.

    Raises:
        WrongReleaseError: with all that was done until then.
    """
    dice = random.Random(seed)  # noqa: S311 - to do the same again
    torch.manual_seed(seed)
    bench = Bench(dice, kind, together=together, releases=releases, workers=workers)
    names, weights = list(ACTIONS), [weight for weight, _ in ACTIONS.values()]
    try:
        with bench.draws.watched():
            bench.begin(dice.choice((0, 1, 2)))
            for name in dice.choices(names, weights, k=dice.randrange(10, 40)):
                bench.trace.append(name)
                try:
                    ACTIONS[name][1](bench)
                except EXPECTED as error:
                    bench.trace.append(type(error).__name__)
                except ValueError as error:  # Opacus' own word against gradients that are missing or used up
                    bench.trace.append(f"{type(error).__name__}: {error}"[:60])
                    bench.broken |= "Poisson sampling is not compatible" in str(error)
                except RuntimeError:
                    if not bench.broken:
                        raise
            if bench.broken:
                return bench
            bench.trace.append("an ordinary epoch")
            bench.run.fault = ""
            discard(bench)
            before, size = bench.sums, 0 if releases > 1 else dice.choice((0, 1, 2))
            bench.epoch(size)
    except Exception as error:
        raise WrongReleaseError(f"seed {seed}, {kind}, {together} together: {bench.trace}") from error
    if bench.sums - before != DRAWS * together * releases:
        raise WrongReleaseError(f"seed {seed}: {bench.sums - before} releases in an ordinary epoch")
    return bench
