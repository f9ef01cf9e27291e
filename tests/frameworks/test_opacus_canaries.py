"""Canaries: every record shows how often it is in a released sum, so that releases, draws and charges can be compared.

Record i has the input 1e4 e_i and a target far away, so that its gradient, clipped, is C e_i: component i of a sum
before its noise is C times the number of times that the record is in it.
"""

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import BudgetExceededError, Event, LedgerUnavailableError, gaussian
from epsilon_ledger.opacus import UnsupportedTrainingError, attach, discard_batch
from tests.sdk.fake_ledger import REFUSAL, FakeRun, problem
from tests.sdk.wire import Fault, Try

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


class FarLoss(nn.MSELoss):
    """The squared error of each record, whether or not the mean is taken."""

    def forward(self, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return super().forward(found.flatten(), wanted.flatten())


@dataclass
class Draws:
    """What the samplers of a training drew, seen where they throw their dice."""

    sets: list[frozenset[int]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
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
                self.rates.append(self.rate())
            return thrown

        torch.rand = rand
        try:
            yield
        finally:
            torch.rand = plain


def shares(optimizer: DPOptimizer) -> list[int]:
    """How often each record is in the sum that an optimizer releases."""
    found = optimizer.params[0].summed_grad.flatten() / -NORM
    whole = found.round()
    assert torch.allclose(found, whole, atol=1e-3), f"not a sum of clipped canaries: {found.tolist()}"
    return [int(share) for share in whole.tolist()]


class Bench:
    """One training, and all that it released."""

    def __init__(
        self, dice: random.Random, kind: str, *, together: int = 1, releases: int = 1, workers: int = 0
    ) -> None:
        self.dice, self.kind, self.together, self.releases = dice, kind, together, releases
        self.run = FakeRun(10**9, population_size=RECORDS)
        self.draws = Draws()
        self.released: Counter[tuple[int, int]] = Counter()  # by optimizer and draw
        self.handed: list[int] = []
        """Draws that were handed out, in order."""
        self.unanswered: set[int] = set()
        """Draws whose step the ledger has not admitted."""
        self.seen = 0
        """Number of charges before the next step."""
        self.sums = 0
        self.largest = 0
        self.trace: list[str] = []
        self.broken = False
        """Whether Opacus' module holds what a backward pass that it refused has left, and gives no gradients again."""
        x, y = 1e4 * torch.eye(RECORDS), torch.full((RECORDS, 1), 1e6)
        loader = DataLoader(TensorDataset(x, y), BATCH, num_workers=workers)
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
        self.batch: Batch | None = None
        self.draw = -1
        self.left = 0  # how many of its records are still to come

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
            attach(optimizer, self.run, data_loader=self.loader, module=module)
        attach(self.optimizers, self.run, data_loader=self.loader, releases_per_sample=self.releases)

    def _watch(self, place: int, optimizer: DPOptimizer) -> None:
        """Look at what is released where nothing can be held back any more: in the optimizer under Opacus'."""
        plain = optimizer.original_optimizer.step

        def step(*arguments: object) -> object:
            self.note(place, shares(optimizer))
            return plain(*arguments)

        def ask(*arguments: object) -> object:
            try:
                return whole(*arguments)
            except (BudgetExceededError, LedgerUnavailableError):
                self.unanswered.add(self.draw)
                raise

        optimizer.original_optimizer.step, whole, optimizer.step = step, optimizer.step, ask

    def note(self, place: int, counts: list[int]) -> None:
        self.sums += 1
        self.largest = max(self.largest, *counts)
        held = frozenset(record for record, count in enumerate(counts) if count)
        assert set(counts) <= {0, 1}, f"records at more than C: {counts}"
        free = [
            draw
            for draw in (self.draw, *range(len(self.draws.sets)))
            if draw >= 0 and self.draws.sets[draw] == held and self.released[place, draw] < self.releases
        ]
        assert free, f"{sorted(held)} is no draw, or was released before; at hand was {self.draw}"
        # Of draws of the same records, a new charge is for one of which nothing was released yet.
        known = {draw for (_, draw), count in self.released.items() if count}
        new = len(self.run.asked) > self.seen
        free.sort(key=lambda draw: (draw != self.draw, (draw in known) == new))
        first = not any(self.released[other, free[0]] for other in range(self.together))
        self.released[place, free[0]] += 1
        self.settle()
        self.seen = len(self.run.asked)
        if first:
            self.compare(self.run.asked[-1], self.draws.rates[free[0]], self.optimizers[place].noise_multiplier)

    def settle(self) -> None:
        """Compare the charges with the draws that were handed out: each is charged, but perhaps the last one."""
        released = {draw for (_, draw), count in self.released.items() if count}
        owed = released | (set(self.handed[:-1]) - self.unanswered)
        given_up = {*self.handed[-1:]} - released
        charged = len(self.run.asked)
        assert len(owed) <= charged <= len(owed | given_up), f"{charged} charged, {owed} of {self.handed} to charge"

    def compare(self, event: Event, rate: float, noise: float) -> None:
        """Compare what was charged with how the sample was drawn, and with its noise."""
        charged: Any = event
        inner = charged["event"]
        while "noise_multiplier" not in inner:
            inner = inner["events"][0] if "events" in inner else inner["event"]
        assert charged["sampling_probability"] == pytest.approx(rate, abs=1e-6)
        assert self.together > 1 or inner == gaussian(noise), f"{event} was charged for noise {noise}"

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
                if not self.loader.num_workers:  # evaluations draw, too
                    self.draw = len(self.draws.sets) - 1
                self.handed.append(self.draw)
                self.left = len(self.draws.sets[self.draw])
            self.left -= len(batch[0]) if size else self.left
            yield batch

    def fetch(self) -> bool:
        try:
            self.batch = next(self.batches, None)
        finally:
            self.seen = len(self.run.asked)
        return self.batch is not None

    def discard(self) -> None:
        """Give the batch up."""
        try:
            for optimizer in self.optimizers:
                discard_batch(optimizer)
        finally:
            self.seen = len(self.run.asked)

    def evaluate(self) -> None:
        """Read all batches, as an evaluation does."""
        if not self.loader.num_workers:
            with torch.no_grad():
                for x, _ in self.loader:
                    self.models[0](x)

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


def refusal_of(bench: Bench) -> Try:
    """What a client hears if the ledger refuses its next step."""
    return Try(problem(403, "budget_exceeded", **(REFUSAL | {"first_step": len(bench.run.asked), "count": 1})), 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [{}, {"together": 2}, {"releases": 2}], ids=str)
def test_each_draw_of_epoch_is_charged_once_and_holds_each_record_once(kind: str, shape: dict[str, int]) -> None:
    bench = Bench(random.Random(1), kind, **shape)  # noqa: S311 - to do the same again
    with bench.draws.watched():
        bench.epoch(0 if shape else 1)
        bench.epoch()
    assert len(bench.run.asked) == len(bench.draws.sets) == 2 * DRAWS
    assert bench.sums == 2 * DRAWS * bench.together * bench.releases
    assert bench.largest == 1


@pytest.mark.parametrize("kind", KINDS)
def test_draw_that_was_given_up_is_charged_and_one_that_ledger_refused_is_not(kind: str) -> None:
    bench = Bench(random.Random(2), kind)  # noqa: S311 - to do the same again
    with bench.draws.watched():
        bench.begin()
        bench.fetch()
        with pytest.raises(UnsupportedTrainingError, match="The last batch was not stepped"):
            bench.fetch()
        bench.begin()
        with pytest.warns(UserWarning, match="charged as drawn"):
            bench.fetch()
        bench.discard()
        for refused in (False, True):
            bench.fetch()
            bench.run.ledger.fails(refusal_of(bench) if refused else Fault.NEVER_SENT)
            with pytest.raises((LedgerUnavailableError, BudgetExceededError)):
                bench.step()
        while bench.fetch():
            bench.step()
            bench.evaluate()
    assert bench.sums == DRAWS - 3
    assert len(bench.run.asked) == DRAWS - 1
