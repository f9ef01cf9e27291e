"""The numbers of a run after a decision: its epsilon, and the used share of the account that decides."""

from collections import Counter
from collections.abc import Sequence

from app.accounting.events import fingerprint
from app.ledger.accounts.account import Account
from app.ledger.accounts.account_records import Counts, added_counts
from app.ledger.admission.admission import governing_of
from app.ledger.runs.decisions import Reading
from app.ledger.step_events import PricedStep
from app.service.charging.requests import NotLoadedError
from app.service.charging.step_epsilons import MOST_COMPOSED, STEP_EPSILONS, Workload
from app.service.charging.unit_of_work import UnitOfWork


def read_after(
    work: UnitOfWork, path: Sequence[Account], used: float, steps: Sequence[PricedStep] = (), own: Account | None = None
) -> Reading:
    """Read a run's numbers after steps were charged to it; changes nothing.

    Args:
        work: has the run as it was before.
        path: of the run, root first.
        used: share of the account that decides.
        steps: that are charged; none: the run is read as it is.
        own: the run's account after them.

    Raises:
        CostNotReadyError: its epsilon must be computed first.
        NotLoadedError: some of its events must be loaded first.
    """
    governing, own = governing_of(path), own or path[-1]
    assert governing.limit is not None, "it governs"
    limit = governing.limit
    epsilon = _epsilon(work, own, limit.shown_delta, steps)
    if governing.used(own.spent) <= 1:
        epsilon = min(epsilon, limit.epsilon)
    return Reading(epsilon, limit, used)


def _epsilon(work: UnitOfWork, own: Account, delta: float, steps: Sequence[PricedStep]) -> float:
    if own.spent.is_zero:
        return 0.0
    counts = _counts_after(work.record(own.id).counts, steps)
    if counts is None or len(counts) > MOST_COMPOSED:
        return own.rdp_epsilon(delta)
    workload = Workload.of(own.relation, delta, own.id, counts)
    event = fingerprint(steps[-1].step.event) if steps else workload.kinds[0]
    found = STEP_EPSILONS.find(workload, counts, event)
    if found is not None:
        return found.epsilons[0]
    if STEP_EPSILONS.is_busy:
        return own.rdp_epsilon(delta)
    kinds = {**work.kinds, **{fingerprint(each.step.event): (each.step.event, each.curve) for each in steps}}
    lacking = counts.keys() - kinds.keys()
    if lacking:
        raise NotLoadedError(own, kinds=frozenset(lacking))
    known = {kind: kinds[kind] for kind in counts}
    if None in known.values():
        return own.rdp_epsilon(delta)
    raise STEP_EPSILONS.missing(workload, counts, event, {kind: each for kind, each in known.items() if each})


def _counts_after(counts: Counts | None, steps: Sequence[PricedStep]) -> Counts | None:
    further = Counter[str]()
    for each in steps:
        further[fingerprint(each.step.event)] += each.step.count
    return added_counts(counts, further)
