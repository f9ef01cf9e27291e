"""Whether what an event costs where a record is replaced also bounds what it costs where one leaves or enters."""

from typing import Final

from app.accounting.events import (
    DpEvent,
    RandomizedResponse,
    SampledWithoutReplacement,
    TreeAggregation,
    inside,
)

SHOWS_REMOVAL: Final = (RandomizedResponse, TreeAggregation, SampledWithoutReplacement)
"""Of these a missing record shows, whatever it was: it does not answer, the steps of those after it move, or batches
are drawn from another number of records."""


def unbounded_on_removal(event: DpEvent) -> DpEvent | None:
    """Find the part of an event whose price under replace_one says nothing about a record that leaves or enters.

    A sum of clipped vectors moves by one clipping norm where a record leaves, and by up to two where it is replaced.
    A stated guarantee is taken at its word: who attests that removal is bounded attests it of these, too. Everything
    else is made of its parts by bounds that grow with theirs; that of a Poisson sample is the joint convexity of
    `taken_or_not_rdp`, with the output without the record in one place of the pair.

    Args:
        event: what a mechanism does to a part of the data.

    Returns:
        The first such part; None: the event is bounded on removal.
    """
    if isinstance(event, SHOWS_REMOVAL):
        return event
    return next((found for part in inside(event) if (found := unbounded_on_removal(part)) is not None), None)
