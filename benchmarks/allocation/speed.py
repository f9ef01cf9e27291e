"""Time of a decision while many plans wait for many blocks."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from random import Random
from statistics import median, quantiles
from time import process_time
from typing import Final

from app.accounting.events import Gaussian
from app.ledger.accounts.account import Account
from app.ledger.filter.filters import filter_weights
from app.ledger.filter.limits import Limit
from app.ledger.scheduling.queue import Ledgers, WaitingReservation, schedule
from app.ledger.scheduling.scheduling_rules import Line
from app.ledger.scheduling.withholding import Withholding
from app.ledger.settings.allocation import ALL, Allocation, SchedulingRule, UnlockByReservations
from app.ledger.step_events import PricedStep, StepEvent
from benchmarks.allocation.blocks import BlockFilter, make_block, make_run, priced
from benchmarks.allocation.simulation import START

PLANS, BLOCKS, BLOCKS_OF_A_PLAN = 10_000, 1_000, 10
NOISES: Final = (5.0, 8.0, 20.0, 30.0)
COUNTS: Final = (5, 50, 200)
LIMIT, RAISED, RAISED_MORE = Limit(10.0, 1e-7), Limit(10.5, 1e-7), Limit(11.0, 1e-7)


def waiting_reservations(plans: int, blocks: int) -> tuple[list[Account], list[WaitingReservation]]:
    """Make blocks, runs, and their plans for some blocks each."""
    random = Random(1)  # noqa: S311 - a workload, not noise
    weights = filter_weights(LIMIT, priced(Gaussian(20.0)).curve, 1)
    accounts = [make_block(index, BlockFilter("", LIMIT, weights)) for index in range(blocks)]
    found, runs = [], []
    for index in range(plans):
        path = sorted(random.sample(accounts, BLOCKS_OF_A_PLAN), key=lambda block: block.id)
        runs.append(make_run(index, path[0]))
        event = priced(Gaussian(random.choice(NOISES)))
        steps = (PricedStep(StepEvent(event.step.event, random.choice(COUNTS)), event.curve),)
        names = (*(block.id for block in path), runs[-1].id)
        found.append(WaitingReservation(f"res_{index:06}", names, steps, START + timedelta(seconds=index)))
    return [*accounts, *runs], found


def ledgers_of(accounts: list[Account], *, locked: bool) -> Ledgers:
    """Make the ledgers, with half of the blocks' limits maybe locked."""
    half = Withholding(Allocation(unlock=UnlockByReservations(START, 100)), ALL / 2)
    withheld = {each.id: half for each in accounts if locked and each.limit is not None}
    return Ledgers({each.id: each for each in accounts}, withheld)


def measure(
    rule: SchedulingRule, ledgers: Ledgers, plans: list[WaitingReservation], changes: int
) -> Iterator[tuple[float, int]]:
    """Yield the first pass, then decisions after the limit of one block was raised: seconds, and plans granted."""
    line = Line(rule)
    for plan in plans:
        line.add(plan)
    yield _decide(line, ledgers, list(ledgers.accounts))
    blocks = [each.id for each in ledgers.accounts.values() if each.limit is not None]
    for index in range(changes):
        block = ledgers.accounts[blocks[index % len(blocks)]]
        ledgers.accounts[block.id] = replace(block, limit=RAISED if block.limit == LIMIT else RAISED_MORE)
        yield _decide(line, ledgers, [block.id])


def _decide(line: Line, ledgers: Ledgers, changed: list[str]) -> tuple[float, int]:
    start = process_time()
    now = START + timedelta(days=1)
    grants = list(schedule(line.order(line.candidates(ledgers, changed), ledgers, now), line.aged(now), ledgers))
    for grant in grants:
        line.remove(grant.standing.reservation.id)
    return process_time() - start, len(grants)


def main(*, full: bool = False) -> None:
    """Print the times."""
    changes = BLOCKS if full else 200
    print(f"{PLANS:,} plans, {BLOCKS:,} blocks, {BLOCKS_OF_A_PLAN} blocks each; {changes} raised limits")
    print("processor time of a decision, in milliseconds (goal: 100), and of the first pass over all plans")
    print(f"{'':32} {'median':>8} {'95 %':>8} {'largest':>8} {'granted':>8} {'first pass, s':>14} {'granted':>8}")
    accounts, plans = waiting_reservations(PLANS, BLOCKS)
    for locked in (False, True):
        for rule in SchedulingRule:
            (first, granted), *taken = measure(rule, ledgers_of(accounts, locked=locked), plans, changes)
            times = [seconds * 1e3 for seconds, _ in taken]
            name = f"{rule}{', half locked' if locked else ''}"
            figures = f"{median(times):8.1f} {quantiles(times, n=20)[-1]:8.1f} {max(times):8.1f}"
            print(f"{name:32} {figures} {sum(each for _, each in taken):8} {first:14.1f} {granted:8}", flush=True)


if __name__ == "__main__":
    main()
