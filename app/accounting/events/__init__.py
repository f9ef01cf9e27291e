"""Mechanisms as frozen DpEvents, with wire form, canonical form and fingerprint.

To add an event type, write a dataclass under `@wire_type(name)` in the module of its kind, and a formula in
`app.accounting.base_rdp` or `app.accounting.rdp`.
"""

from app.accounting.events.base import (
    MAX_COUNT,
    MAX_NOISE_MULTIPLIER,
    DpEvent,
    NeighboringRelation,
    child_events,
    mechanisms_in,
    type_name,
)
from app.accounting.events.composite import (
    MAX_EVENTS,
    MAX_GROUP,
    MIN_SHAPE,
    Composed,
    Decay,
    GroupPrivacy,
    PoissonSampled,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SelfComposed,
    is_noisy_sum,
    unbounded_on_removal,
)
from app.accounting.events.mechanisms import (
    MAX_SENSITIVITY,
    AdaptiveClipping,
    DiscreteGaussian,
    EpsilonDelta,
    Exponential,
    Gaussian,
    Laplace,
    RandomizedResponse,
    TreeAggregation,
    Zcdp,
)
from app.accounting.events.parameters import (
    noise_multiplier,
    sampling_probability,
    scheduled_events,
    smallest_noise,
    with_noise_multiplier,
    with_sampling_probability,
)
from app.accounting.events.serialization import (
    MAX_NESTING,
    canonical,
    event_from_canonical,
    event_from_dict,
    event_to_dict,
    fingerprint,
)
from app.accounting.formulas.noise_schedules import MIN_NOISE_MULTIPLIER

__all__ = [
    "MAX_COUNT",
    "MAX_EVENTS",
    "MAX_GROUP",
    "MAX_NESTING",
    "MAX_NOISE_MULTIPLIER",
    "MAX_SENSITIVITY",
    "MIN_NOISE_MULTIPLIER",
    "MIN_SHAPE",
    "AdaptiveClipping",
    "Composed",
    "Decay",
    "DiscreteGaussian",
    "DpEvent",
    "EpsilonDelta",
    "Exponential",
    "Gaussian",
    "GroupPrivacy",
    "Laplace",
    "NeighboringRelation",
    "PoissonSampled",
    "RandomizedResponse",
    "RepeatAndSelect",
    "SampledWithoutReplacement",
    "SelfComposed",
    "TreeAggregation",
    "Zcdp",
    "canonical",
    "child_events",
    "event_from_canonical",
    "event_from_dict",
    "event_to_dict",
    "fingerprint",
    "is_noisy_sum",
    "mechanisms_in",
    "noise_multiplier",
    "sampling_probability",
    "scheduled_events",
    "smallest_noise",
    "type_name",
    "unbounded_on_removal",
    "with_noise_multiplier",
    "with_sampling_probability",
]
