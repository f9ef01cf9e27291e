"""Translation of events between dp_accounting (jax-privacy, tf-privacy) and the ledger.

    run.authorize(event=from_dp_accounting(event_builder.build()))

Each type is translated to its exact counterpart or refused. One difference remains: under replacement of a record a sum
moves by up to two clipping norms, for which the ledger accounts itself, whereas dp_accounting leaves it to its caller.

Needs `pip install "epsilon-ledger-client[dp-accounting]"`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Any, Final

from dp_accounting import dp_event as theirs

from epsilon_ledger import (
    Event,
    LedgerError,
    composed,
    discrete_gaussian,
    discrete_laplace,
    epsilon_delta,
    exponential,
    gaussian,
    laplace,
    mixture_of_gaussians,
    no_op,
    permute_and_flip,
    poisson_sampled,
    randomized_response,
    repeat_and_select,
    sampled_with_replacement,
    sampled_without_replacement,
    self_composed,
    tree_aggregation,
    truncated_poisson_sampled,
    zcdp,
)

__all__ = ["UntranslatableEventError", "from_dp_accounting", "to_dp_accounting"]


class UntranslatableEventError(LedgerError, ValueError):
    """An event has no exact counterpart.

    Args:
        event: name of its type.
        reason: of the failure, with advice.
    """

    def __init__(self, event: str, reason: str) -> None:
        super().__init__(event, reason)
        self.event = event
        self.reason = reason

    def __str__(self) -> str:
        """Format the event and the reason."""
        return f"{self.event} cannot be translated: {self.reason}"


def from_dp_accounting(event: theirs.DpEvent) -> Event:
    """Translate an event of dp_accounting into the ledger's.

    Parts of a composition that release nothing (NoOpDpEvent, samples with probability 0) are left out.

    Args:
        event: of dp_accounting.

    Returns:
        The equivalent event for the wire.

    Raises:
        UntranslatableEventError: it, or a part of it, has no counterpart.
    """
    return _from(event) or no_op()


def to_dp_accounting(event: Event) -> theirs.DpEvent:
    """Translate an event of the ledger into dp_accounting's.

    Args:
        event: from this package's event factories.

    Returns:
        The equivalent event.

    Raises:
        UntranslatableEventError: it, or a part of it, has no counterpart or is not an event.
    """
    given: object = event
    name = str(given.get("type")) if isinstance(given, Mapping) else type(given).__name__
    if name not in _TO:
        raise UntranslatableEventError(name, _ONLY_OURS.get(name, "it is no event of the ledger."))
    expected, write = _TO[name]
    extra = {key for key in event if key not in expected and (key, event[key]) != ("clipped", "example")} - {"type"}
    if extra:
        # For instance a gaussian of clipped micro-batches, for which dp_accounting has no type.
        raise UntranslatableEventError(name, f"dp_accounting has no counterpart of {', '.join(sorted(extra))}.")
    try:
        return write(event)
    except KeyError as missing:
        raise UntranslatableEventError(name, f"it lacks {missing}.") from None


def _from(event: theirs.DpEvent) -> Event | None:
    """Translate by exact type; return None for an event that releases nothing."""
    name = type(event).__name__
    translate = _FROM.get(type(event))
    if translate is None and getattr(theirs, name, None) is type(event):
        translate = _LATER.get(name)
    if translate is not None:
        return translate(event)
    raise UntranslatableEventError(name, _ONLY_THEIRS.get(name, "this version of the client does not know it."))


def _from_composed(event: Any) -> Event | None:  # noqa: ANN401 - mypy does not read dp_accounting
    parts = [part for part in map(_from, event.events) if part is not None]
    return composed(parts) if parts else None


def _from_self_composed(event: Any) -> Event | None:  # noqa: ANN401 - mypy does not read dp_accounting
    part = _from(event.event)
    return None if part is None or event.count == 0 else self_composed(part, index(event.count))


def _wrapped(write: Callable[[Any, Event], Event]) -> Callable[[Any], Event | None]:
    """Make the translation of a wrapper, which is None around None and of an empty batch."""

    def translate(event: Any) -> Event | None:  # noqa: ANN401 - mypy does not read dp_accounting
        part = None if getattr(event, "sample_size", 1) == 0 else _from(event.event)
        return None if part is None else write(event, part)

    return translate


def _step_counts(counts: int | Iterable[int]) -> list[int]:
    return [index(steps) for steps in counts] if isinstance(counts, Iterable) else [index(counts)]


def _from_poisson(event: Any) -> Event | None:  # noqa: ANN401 - mypy does not read dp_accounting
    part = _from(event.event) if event.sampling_probability else None
    return None if part is None else poisson_sampled(event.sampling_probability, part)


def _from_discrete_gaussian(event: Any) -> Event:  # noqa: ANN401 - mypy does not read dp_accounting
    """Translate discrete Gaussian noise; only of one dimension, the sensitivity is an L1 norm, too."""
    is_l1 = event.dimension == 1 and float(event.sensitivity).is_integer()
    return discrete_gaussian(event.sigma / event.sensitivity, int(event.sensitivity) if is_l1 else None)


def _from_mixture(event: Any) -> Event | None:  # noqa: ANN401 - mypy does not read dp_accounting
    sensitivities, shares = list(event.sensitivities), list(event.sampling_probs)
    if not any(sensitivities):
        return None
    return mixture_of_gaussians(event.standard_deviation, sensitivities, shares)


def _from_truncated(event: Any) -> Event | None:  # noqa: ANN401 - mypy does not read dp_accounting
    if 0 in (event.dataset_size, event.sampling_probability, event.truncated_batch_size):
        return None
    size, most = index(event.dataset_size), index(event.truncated_batch_size)
    return truncated_poisson_sampled(size, event.sampling_probability, most, gaussian(event.noise_multiplier))


def _to_truncated(event: Any) -> theirs.DpEvent:  # noqa: ANN401 - any JSON
    inner = to_dp_accounting(event["event"])
    if not isinstance(inner, theirs.GaussianDpEvent):
        raise UntranslatableEventError(
            "truncated_poisson_sampled", "dp_accounting has truncated Poisson samples of gaussian events only."
        )
    return theirs.TruncatedSubsampledGaussianDpEvent(
        event["source_dataset_size"],
        event["sampling_probability"],
        event["truncated_batch_size"],
        inner.noise_multiplier,
    )


_FROM: Final[Mapping[type, Callable[[Any], Event | None]]] = {
    theirs.NoOpDpEvent: lambda _: None,
    theirs.GaussianDpEvent: lambda event: gaussian(event.noise_multiplier),
    theirs.LaplaceDpEvent: lambda event: laplace(event.noise_multiplier),
    theirs.DiscreteLaplaceDpEvent: lambda event: discrete_laplace(event.noise_parameter, index(event.sensitivity)),
    theirs.RandomizedResponseDpEvent: lambda event: (
        None if event.num_buckets == 1 else randomized_response(event.noise_parameter, index(event.num_buckets))
    ),
    theirs.ZCDpEvent: lambda event: zcdp(event.rho, event.xi),
    theirs.SingleEpochTreeAggregationDpEvent: lambda event: tree_aggregation(
        event.noise_multiplier, _step_counts(event.step_counts)
    ),
    theirs.ComposedDpEvent: _from_composed,
    theirs.SelfComposedDpEvent: _from_self_composed,
    theirs.PoissonSampledDpEvent: _from_poisson,
    theirs.SampledWithoutReplacementDpEvent: _wrapped(
        lambda event, part: sampled_without_replacement(
            index(event.source_dataset_size), index(event.sample_size), part
        )
    ),
    theirs.SampledWithReplacementDpEvent: _wrapped(
        lambda event, part: sampled_with_replacement(index(event.source_dataset_size), index(event.sample_size), part)
    ),
    theirs.TruncatedSubsampledGaussianDpEvent: _from_truncated,
    theirs.MixtureOfGaussiansDpEvent: _from_mixture,
    theirs.RepeatAndSelectDpEvent: _wrapped(
        lambda event, part: repeat_and_select(part, event.mean, None if math.isinf(event.shape) else event.shape)
    ),
}

_LATER: Final[Mapping[str, Callable[[Any], Event]]] = {
    "DiscreteGaussianDpEvent": _from_discrete_gaussian,
    "EpsilonDeltaDpEvent": lambda event: epsilon_delta(event.epsilon, event.delta),
    "ExponentialMechanismDpEvent": lambda event: exponential(event.epsilon),
    "PermuteAndFlipDpEvent": lambda event: permute_and_flip(event.epsilon),
}
"""Types of later versions than 0.6 of dp_accounting."""

_ONLY_THEIRS: Final[Mapping[str, str]] = {
    "NonPrivateDpEvent": "an operation without privacy costs more than any budget has.",
    "UnsupportedDpEvent": "it says itself that nothing is known of its cost.",
}

_TO: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Any], theirs.DpEvent]]]] = {
    "gaussian": (("noise_multiplier",), lambda event: theirs.GaussianDpEvent(event["noise_multiplier"])),
    "laplace": (("noise_multiplier",), lambda event: theirs.LaplaceDpEvent(event["noise_multiplier"])),
    "discrete_laplace": (
        ("noise_parameter", "sensitivity"),
        lambda event: theirs.DiscreteLaplaceDpEvent(event["noise_parameter"], event["sensitivity"]),
    ),
    "randomized_response": (
        ("noise_parameter", "num_buckets"),
        lambda event: theirs.RandomizedResponseDpEvent(event["noise_parameter"], event["num_buckets"]),
    ),
    "no_op": ((), lambda _: theirs.NoOpDpEvent()),
    "zcdp": (("rho", "xi"), lambda event: theirs.ZCDpEvent(event["rho"], event.get("xi", 0.0))),
    "tree_aggregation": (
        ("noise_multiplier", "step_counts"),
        lambda event: theirs.SingleEpochTreeAggregationDpEvent(event["noise_multiplier"], list(event["step_counts"])),
    ),
    "composed": (("events",), lambda event: theirs.ComposedDpEvent([to_dp_accounting(e) for e in event["events"]])),
    "self_composed": (
        ("event", "count"),
        lambda event: theirs.SelfComposedDpEvent(to_dp_accounting(event["event"]), event["count"]),
    ),
    "poisson_sampled": (
        ("sampling_probability", "event"),
        lambda event: theirs.PoissonSampledDpEvent(event["sampling_probability"], to_dp_accounting(event["event"])),
    ),
    "sampled_without_replacement": (
        ("source_dataset_size", "sample_size", "event"),
        lambda event: theirs.SampledWithoutReplacementDpEvent(
            event["source_dataset_size"], event["sample_size"], to_dp_accounting(event["event"])
        ),
    ),
    "sampled_with_replacement": (
        ("source_dataset_size", "sample_size", "event"),
        lambda event: theirs.SampledWithReplacementDpEvent(
            event["source_dataset_size"], event["sample_size"], to_dp_accounting(event["event"])
        ),
    ),
    "truncated_poisson_sampled": (
        ("source_dataset_size", "sampling_probability", "truncated_batch_size", "event"),
        _to_truncated,
    ),
    "mixture_of_gaussians": (
        ("standard_deviation", "sensitivities", "sampling_probs"),
        lambda event: theirs.MixtureOfGaussiansDpEvent(
            event["standard_deviation"], list(event["sensitivities"]), list(event["sampling_probs"])
        ),
    ),
    "repeat_and_select": (
        ("event", "mean", "shape"),
        lambda event: theirs.RepeatAndSelectDpEvent(
            to_dp_accounting(event["event"]), event["mean"], math.inf if event["shape"] is None else event["shape"]
        ),
    ),
}

_ONLY_OURS: Final[Mapping[str, str]] = {
    "adaptive_clipping": "dp_accounting has no type for it. Two GaussianDpEvents composed, of the gradients and of "
    "twice the count's noise, cost the same.",
    "decay": "dp_accounting has no schedules. Compose the event of each step.",
    "discrete_gaussian": "dp_accounting 0.6 has no discrete Gaussian noise, and later versions ask for its dimension.",
    "epsilon_delta": "dp_accounting 0.6 has no event for a stated guarantee.",
    "exponential": "dp_accounting 0.6 has no exponential mechanism.",
    "permute_and_flip": "dp_accounting 0.6 has no permute-and-flip mechanism.",
    "group_privacy": "dp_accounting has no units with several records.",
}
