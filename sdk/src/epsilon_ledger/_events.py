"""Events as they travel: what one noisy step did to the data."""

from collections.abc import Mapping
from typing import Literal, TypeAlias, TypedDict

# Any event of the ledger's API; the helpers below write the two that DP-SGD needs.
Event: TypeAlias = Mapping[str, object]


class GaussianEvent(TypedDict):
    """Gaussian noise on a sum whose sensitivity is bounded by clipping."""

    type: Literal["gaussian"]
    noise_multiplier: float


class PoissonSampledEvent(TypedDict):
    """An event that saw only a Poisson sample of the data."""

    type: Literal["poisson_sampled"]
    sampling_probability: float
    event: Event


class EventCount(TypedDict):
    """An event and how often it is repeated."""

    event: Event
    count: int


def gaussian(noise_multiplier: float) -> GaussianEvent:
    """Describe Gaussian noise on a clipped sum.

    Args:
        noise_multiplier: standard deviation of the noise divided by the clipping norm, in [1e-3, 1e6].

    Returns:
        The event for the wire.
    """
    return {"type": "gaussian", "noise_multiplier": float(noise_multiplier)}


def poisson_sampled(sampling_probability: float, event: Event) -> PoissonSampledEvent:
    """Describe an event on a Poisson sample: every record is drawn by its own coin.

    Args:
        sampling_probability: chance of each record to be in the sample, in (0, 1]; a shuffled loader's
            batch size over n is not this.
        event: what is done to the sample.

    Returns:
        The event for the wire.
    """
    return {
        "type": "poisson_sampled",
        "sampling_probability": float(sampling_probability),
        "event": event,
    }
