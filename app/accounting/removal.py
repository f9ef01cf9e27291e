"""Check whether a cost under replace_one also bounds adding or removing a record."""

from typing import Final

from app.accounting.events import DpEvent, RandomizedResponse, SampledWithoutReplacement, TreeAggregation, child_events

SHOWS_REMOVAL: Final = (RandomizedResponse, TreeAggregation, SampledWithoutReplacement)
"""A missing record is visible in their output: it does not answer, shifts the steps of later records, or changes the
number of records that batches are drawn from."""


def unbounded_on_removal(event: DpEvent) -> DpEvent | None:
    """Find a part of an event whose replace_one cost misses removal.

    A sum of clipped vectors moves by one clipping norm if a record is removed, and by up to two if it is replaced. A
    stated guarantee is trusted: the attestation of bounded removal covers it. All other events are bounded by
    monotone functions of their parts; for a Poisson sample that is the joint convexity of `replace_sampled_rdp`, with
    the output without the record on one side of the pair.

    Returns:
        The first such part, or None if the whole event is bounded on removal.
    """
    if isinstance(event, SHOWS_REMOVAL):
        return event
    return next((found for part in child_events(event) if (found := unbounded_on_removal(part)) is not None), None)
