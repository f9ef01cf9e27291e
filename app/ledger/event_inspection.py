"""Inspect the noise of events."""

from math import hypot

import numpy as np

from app.accounting.events import AdaptiveClipping, Decay, DpEvent, child_events
from app.accounting.formulas.noise_schedules import scheduled_noise


def smallest_noise(event: DpEvent) -> float | None:
    """Find the smallest noise multiplier in an event; None if no part has one.

    For adaptive clipping it is that of gradients and count together (arXiv 1905.03871, Theorem 1), for a decay its
    last.
    """
    if isinstance(event, Decay):
        first = smallest_noise(event.event)
        assert first is not None, "a decay holds a mechanism with noise"
        last = np.array([event.first_step + event.steps - 1])
        return float(scheduled_noise(event.mode, first, event.decay_rate, last)[0])
    if isinstance(event, AdaptiveClipping) and event.noise_multiplier is None:
        assert event.gradient_noise_multiplier is not None
        assert event.count_noise_stddev is not None
        return 1 / hypot(1 / event.gradient_noise_multiplier, 1 / (2 * event.count_noise_stddev))
    parts = child_events(event)
    if parts:
        return min((noise for each in parts if (noise := smallest_noise(each)) is not None), default=None)
    return getattr(event, "noise_multiplier", None)
