"""Warnings of a run's first charge about accounts whose filters are not tuned to it (ADR 0053)."""

from collections.abc import Collection, Sequence

from app.accounting.events import fingerprint
from app.ledger.accounts.account import Account
from app.ledger.governance.registered_steps import registered_steps
from app.ledger.governance.steps_lost import (
    PricedGroup,
    RegisteredGroup,
    find_steps_lost,
    may_lose_steps,
    priced_groups,
)
from app.ledger.runs.run import Run
from app.ledger.step_events import PricedStep, StepEvent
from app.service.charging.requests import NotLoadedError
from app.service.charging.unit_of_work import UnitOfWork


def find_warnings(
    work: UnitOfWork, run: Run, charged: Sequence[Account], steps: Sequence[PricedStep]
) -> tuple[str, ...]:
    """Find the accounts that lose registered steps because their filter is not tuned to them.

    Args:
        work: has the run and its accounts before the steps.
        run: of which these are the first steps; no others are looked at, nor a run that does not say how many it takes.
        charged: the accounts of its path after the steps.
        steps: that are charged.

    Raises:
        NotLoadedError: the other registered runs must be loaded first.
    """
    own, expected = work.record(run.account_id).account, run.declaration.expected_steps
    if expected is None or not own.spent.is_zero:
        return ()
    declared = registered_steps(own.planned, run.event, expected)
    as_declared = {step.step.event for step in steps} <= {step.event for step in declared}
    if not as_declared:
        declared = (StepEvent(steps[-1].step.event, expected),)
    kinds = {fingerprint(step.event) for step in declared}
    untuned = [each for each in charged if may_lose_steps(each)]
    suspects = [each for each in untuned if not _is_tuned(work, each, kinds, as_declared=as_declared)]
    if not suspects:
        return ()
    if run.account_id not in work.registered:
        raise NotLoadedError(own, untuned=tuple(each.id for each in suspects))
    taken = run.next_step + sum([step.step.count for step in steps])
    curves = {step.step.event: step.curve for step in steps} | work.costs_of(own)
    groups = priced_groups((RegisteredGroup(each.id, declared, expected, taken) for each in suspects), curves)
    found = [find_steps_lost(each, _of_account(each, [*groups, *work.registered[run.account_id]])) for each in suspects]
    return tuple([lost.warning for lost in found if lost is not None])


def _of_account(account: Account, groups: Sequence[PricedGroup]) -> list[PricedGroup]:
    return [group for group in groups if group.account_id == account.id]


def _is_tuned(work: UnitOfWork, account: Account, kinds: Collection[str], *, as_declared: bool) -> bool:
    """Check whether an account's filter was tuned to events: none was charged before, or no others were."""
    counts = work.record(account.id).counts
    return counts is not None and (counts.keys() <= set(kinds) if counts else as_declared)
