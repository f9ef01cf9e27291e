"""Compute an account's spending over time, by child."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from math import ceil
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.ledger.accounts.account_records import Counts
from app.ledger.accounts.part_counts import largest_counts, most_of_each
from app.persistence.repositories.usage_history import Sample

Floats = NDArray[np.float64]
Events = Mapping[tuple[str, int], Sequence[tuple[str, int]]]

FEWEST: Final = 1e-300


BLOCK: Final = 64
"""Orders, or events, per matrix operation: bounds the memory for many children, times and orders."""


@dataclass(frozen=True, slots=True)
class SpendSeries:
    """Charges of each child at several times.

    Args:
        counts: by child and event: (n_moments,) cumulative number of charges.
        prices: by event: (n_orders,) in units of 2^-44 nats.
        deltas: by child: (n_moments,) in units of 1e-18.
        factors: (n_orders,) multipliers of the curves.
    """

    counts: dict[str, dict[str, Floats]]
    prices: Mapping[str, NDArray[np.float64]]
    deltas: dict[str, Floats]
    factors: NDArray[np.float64]

    def total(self, most: int | None) -> tuple[NDArray[np.float64], Floats]:
        """Sum the `most` largest children at each order; None: all."""
        deltas = np.stack(list(self.deltas.values()))
        if most is None or most >= len(self.counts):
            return self._sum() * self.factors, deltas.sum(axis=0)
        blocks = []
        for start in range(0, self.factors.size, BLOCK):
            places = slice(start, start + BLOCK)
            curves = np.stack([self._at(child, places) for child in self.counts])
            blocks.append(np.sort(curves, axis=0)[-most:].sum(axis=0))
        return np.concatenate(blocks, axis=1), np.sort(deltas, axis=0)[-most:].sum(axis=0)

    def counts_that_matter(self, moment: int, most: int | None) -> Sequence[Counts] | None:
        """List the charges by event at a moment of which one may have the largest epsilon.

        Of disjoint parts, the `most` that lost most count; None: all add up. None if there are too many alternatives.
        """
        parts = [
            {event: ceil(round(float(times[moment]), 6)) for event, times in mine.items()}
            for mine in self.counts.values()
        ]
        found: list[Counts] = [*parts] if most == 1 else [most_of_each([[part] for part in parts], most or len(parts))]
        return largest_counts([{event: count for event, count in each.items() if count} for each in found])

    def through(self, child: str, place: int) -> Floats:
        """Get the spending of a child, (n_moments,), at one order."""
        return self._at(child, slice(place, place + 1))[:, 0]

    def scaled(self, end: RdpCurve, most: int | None) -> "SpendSeries":
        """Rescale each order so that the series ends with the known total."""
        curves, deltas = self.total(most)
        factors = np.where(curves[-1] > 0, end.values / np.maximum(curves[-1], FEWEST), 1.0)
        share = end.delta / max(float(deltas[-1]), FEWEST) if deltas[-1] > 0 else 1.0
        stretched = {child: delta * share for child, delta in self.deltas.items()}
        return SpendSeries(self.counts, self.prices, stretched, self.factors * factors)

    def ends_with(self, end: RdpCurve, most: int | None) -> bool:
        """Whether the series ends with the known total, up to rounding beyond 2^53 units."""
        curves, deltas = self.total(most)
        last = np.minimum(curves[-1], float(EXHAUSTED))
        return bool(np.allclose(last, end.values, rtol=_ROUNDING, atol=0.5)) and round(deltas[-1]) == end.delta

    def _sum(self) -> NDArray[np.float64]:
        """Sum the unscaled children; each distinct event is priced once."""
        merged: dict[str, Floats] = {}
        for mine in self.counts.values():
            for key, times in mine.items():
                merged[key] = merged[key] + times if key in merged else times
        known = list(merged)
        total = np.zeros((len(next(iter(self.deltas.values()))), self.factors.size))
        for start in range(0, len(known), BLOCK):
            keys = known[start : start + BLOCK]
            total += np.stack([merged[key] for key in keys], axis=1) @ np.stack([self.prices[key] for key in keys])
        return total

    def _at(self, child: str, places: slice) -> NDArray[np.float64]:
        """Get the spending of a child at some orders."""
        mine = self.counts[child]
        times = np.stack(list(mine.values()), axis=1)
        prices: NDArray[np.float64] = times @ np.stack([self.prices[key][places] for key in mine])
        return prices * self.factors[places]


_ROUNDING: Final = 1e-9


def curve_at(values: NDArray[np.float64], delta: float) -> RdpCurve:
    """Round a curve up to whole units."""
    whole = np.ceil(values - 1e-6)  # floating-point sums of integer products may be off in the last bits
    fits = whole < EXHAUSTED
    return RdpCurve(np.where(fits, np.where(fits, whole, 0.0).astype(np.int64), EXHAUSTED), round(delta))


def spend_series(
    samples: Iterable[Sample],
    events: Events,
    children: Mapping[str, Sequence[str]],
    curves: Mapping[str, RdpCurve],
    moments: Sequence[datetime],
    *,
    whole: bool,
) -> SpendSeries:
    """Sum the charges of runs, sampled by run and position, into a series.

    Args:
        samples: charged decisions.
        events: fingerprints and counts of the samples.
        children: by run, the children whose charges its charges are.
        curves: costs by fingerprint.
        moments: the times of the series, increasing.
        whole: whether `samples` is complete; otherwise a missing decision equals the next sample, at evenly spread
            times.
    """
    counts: dict[str, dict[str, Floats]] = {}
    places = np.array([moment.timestamp() for moment in moments])
    for run_id, found in groupby(samples, attrgetter("run_id")):
        each_of = [counts.setdefault(child, {}) for child in children[run_id]]
        for key, (at, cumulated) in _by_event(list(found), events).items():
            if whole:
                further = np.concatenate(([0.0], cumulated))[[bisect_right(at, place) for place in places.tolist()]]
            else:
                further = np.interp(places, [places[0], *at], [0.0, *cumulated])
            for mine in each_of:
                mine[key] = mine[key] + further if key in mine else further
    prices = {key: curve.values.astype(np.float64) for key, curve in curves.items()}
    known = {child: {key: times for key, times in mine.items() if key in prices} for child, mine in counts.items()}
    return SpendSeries(
        known,
        prices,
        {child: _deltas(mine, curves, len(places)) for child, mine in known.items()},
        np.ones(next(iter(prices.values())).size),
    )


def _by_event(found: list[Sample], events: Events) -> dict[str, tuple[list[float], list[float]]]:
    """Get the charge times and cumulative counts of a run, by event."""
    kept: dict[str, tuple[list[float], list[float]]] = {}
    before: Sample | None = None
    for each in found:
        counts = events.get((each.run_id, each.position), ())
        asked = sum(count for _, count in counts)
        weight = _steps_since(before, each) / asked if asked else 0.0
        for key, count in counts:
            at, cumulated = kept.setdefault(key, ([], []))
            at.append(each.at.timestamp())
            cumulated.append((cumulated[-1] if cumulated else 0.0) + count * weight)
        before = each
    return kept


def _steps_since(before: Sample | None, each: Sample) -> int:
    """Count the steps of a decision and of the ones omitted before it."""
    start = -1 if before is None else before.position
    if each.position == start + 1:
        return each.steps
    since = 0 if before is None else before.reached
    same = each.attempt == (1 if before is None else before.attempt)
    return each.reached - since if same and each.reached > since else each.steps * (each.position - start)


def _deltas(counts: Mapping[str, Floats], curves: Mapping[str, RdpCurve], moments: int) -> Floats:
    total = np.zeros(moments)
    for key, times in counts.items():
        total = total + times * curves[key].delta
    return total
