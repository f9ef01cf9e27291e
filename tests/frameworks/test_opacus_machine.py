"""Random interleavings of all that a training loop does and suffers: releases, draws and charges stay equal.

`make soak` runs them long: 50 rounds are 2,000 interleavings.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from epsilon_ledger import BudgetExceededError, LedgerUnavailableError
from epsilon_ledger.opacus import UnsupportedTrainingError
from tests.frameworks.test_opacus_canaries import BATCH, DRAWS, KINDS, RECORDS, Bench, refusal_of
from tests.sdk.wire import Fault

ROUNDS = int(os.environ.get("RELIABILITY_ROUNDS", "1"))
INTERLEAVINGS = 40
SHAPES: list[dict[str, int]] = [{}, {}, {}, {"together": 2}, {"releases": 2}]

EXPECTED = (UnsupportedTrainingError, LedgerUnavailableError, BudgetExceededError)


def step_next(bench: Bench) -> None:
    """Do what a loop does each time; without a next batch, step the last one again."""
    bench.fetch()
    bench.step()


def backward(bench: Bench) -> None:
    """Go backward and no further, with or without clearing gradients before."""
    if bench.batch is not None:
        bench.backward(0, clean=bench.dice.random() < 0.5)


def move_rate(bench: Bench) -> None:
    """Draw more rarely or more often from now on."""
    sampler: Any = bench.loader.batch_sampler
    sampler.sample_rate = bench.dice.choice((0.5, 1, 2)) * BATCH / RECORDS


def move_noise(bench: Bench) -> None:
    bench.dice.choice(bench.optimizers).noise_multiplier = bench.dice.choice((1.0, 2.0))


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
    """Step a batch together with the one before, as if they were one."""
    first = bench.batch
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
    "discard": (2, lambda bench: bench.discard()),
    "evaluate": (1, lambda bench: bench.evaluate()),
    "no answer": (2, lambda bench: bench.run.ledger.fails(Fault.NEVER_SENT)),
    "refusal": (1, lambda bench: bench.run.ledger.fails(refusal_of(bench))),
    "signal": (2, lambda bench: bench.dice.choice(bench.optimizers).signal_skip_step(bench.dice.random() < 0.8)),
    "zero": (1, lambda bench: bench.dice.choice(bench.optimizers).zero_grad()),
    "backward": (1, backward),
    "bare step": (1, lambda bench: bench.dice.choice(bench.optimizers).step()),
    "rate": (1, move_rate),
    "noise": (1, move_noise),
    "attach": (1, lambda bench: bench.attach()),
    "cut by hand": (1, cut_by_hand),
    "one of two": (1, one_of_two),
    "two at once": (1, two_at_once),
}


def interleave(seed: int, kind: str, *, together: int = 1, releases: int = 1, workers: int = 0) -> Bench:
    """Do the actions of a training loop in a random order, and then an ordinary epoch."""
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
            bench.run.ledger.faults.clear()
            bench.discard()
            bench.settle()
            before, size = bench.sums, 0 if releases > 1 else dice.choice((0, 1, 2))
            bench.epoch(size)
            bench.settle()
            assert bench.sums - before == DRAWS * together * releases, "releases of an ordinary epoch"
    except Exception as error:
        error.add_note(f"seed {seed}, {kind}, {together} together: {bench.trace}")
        raise
    return bench


@pytest.mark.filterwarnings("ignore:A batch was fetched and not stepped, and was charged")
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
