"""Generator of expensive plans: every formula at its slowest, nested, scheduled and searched."""

import json
import random
from collections.abc import Iterator
from typing import Any, Final

Json = dict[str, Any]

LARGEST_BODY: Final = 2 << 20
"""Bytes: twice the service's limit; longer bodies only cost the client."""

LIMITS = [{"epsilon": 1.0, "delta": 1e-5}, {"epsilon": 0.01, "delta": 1e-9}, {"epsilon": 300.0, "delta": 1e-3}]
ADD, REPLACE = "add_or_remove_one", "replace_one"


def awful_plans(choice: random.Random, count: int) -> Iterator[tuple[str, Json]]:
    """Yield `count` paths and bodies chosen by a random generator."""
    for _ in range(count):
        yield _plan(choice)


def _plan(choice: random.Random) -> tuple[str, Json]:
    relation = choice.choice([ADD, ADD, REPLACE])
    setting = {"neighboring_relation": relation, "batches": choice.choice(["poisson", "shuffled"])}
    kind = choice.choice(["epsilon", "delta", "trajectory", "noise-multiplier", "steps", "sampling-probability"])
    path = f"/v1/accounting/{kind}"
    if kind in {"epsilon", "delta", "trajectory"}:
        asked = {"epsilon": choice.choice([0.0, 1.0, 10_000.0])} if kind == "delta" else {"delta": 1e-5}
        points = {"max_points": 2000} if kind == "trajectory" else {}
        return path, setting | asked | points | {"events": _counted(choice, relation)}
    target = choice.choice(LIMITS)
    count = {} if kind == "steps" else {"count": choice.choice([1, 10_000, 1_000_000_000])}
    others = {"other_events": _counted(choice, relation)} if choice.randrange(3) == 0 else {}
    return path, setting | target | count | others | {"event": _searched(choice, relation, kind)}


def _counted(choice: random.Random, relation: str) -> list[Json]:
    number = choice.choice([1, 2, 30, 300, 1000, 5000])
    if number == 5000:  # noqa: PLR2004 - stands for one event very often
        event = _event(choice, relation)
        return [{"event": event, "count": 1}] * min(900, 1 + LARGEST_BODY // len(json.dumps(event)))
    if number in {1, 2}:
        return [{"event": _event(choice, relation), "count": choice.randint(1, 10**9)} for _ in range(number)]
    return [{"event": _leaf(choice, relation), "count": choice.randint(1, 10**9)} for _ in range(number)]


def _searched(choice: random.Random, relation: str, kind: str) -> Json:
    """Return an event with a single noise multiplier or sampling probability, to search for."""
    if kind == "steps" or choice.randrange(10) == 0:
        return _event(choice, relation)
    event = _decay(choice) if choice.randrange(5) in {0, 1} else _sampled(choice, relation)
    while kind == "noise-multiplier" and "noise_multiplier" not in json.dumps(event):
        event = _sampled(choice, relation)
    return _wrapped(choice, event)


def _event(choice: random.Random, relation: str) -> Json:
    how = choice.randrange(5)
    if how == 0:
        return _wrapped(choice, _decay(choice))
    if how == 1:
        number = choice.choice([10, 100, 1000])
        return _wrapped(choice, {"type": "composed", "events": [_leaf(choice, relation) for _ in range(number)]})
    if how == 2:  # noqa: PLR2004 - one of five
        trees = [{"type": "tree_aggregation", "noise_multiplier": 1.0, "step_counts": [10**9 - 1] * 1000}] * 50
        return _wrapped(choice, {"type": "composed", "events": trees})
    if how == 3:  # noqa: PLR2004 - one of five
        many = [{"type": "gaussian", "noise_multiplier": 1 + i / 1e4} for i in range(1000)]
        inner = {"type": "composed", "events": many}
        return {
            "type": "poisson_sampled",
            "sampling_probability": 0.01,
            "event": many[0] if relation == REPLACE else inner,
        }
    return _wrapped(choice, _leaf(choice, relation))


def _wrapped(choice: random.Random, event: Json) -> Json:
    for _ in range(choice.choice([0, 1, 10])):
        how = choice.randrange(4)
        if how == 0:
            event = {"type": "group_privacy", "group_size": choice.choice([1, 2]), "event": event}
        elif how == 1:
            shape = choice.choice([None, -0.9999, 0.0, 1.0, 1e6])
            event = {
                "type": "repeat_and_select",
                "mean": choice.choice([1.0, 10.0, 1e9]),
                "shape": shape,
                "event": event,
            }
        else:
            event = {"type": "self_composed", "count": choice.choice([1, 3, 10**9]), "event": event}
    return event


def _decay(choice: random.Random) -> Json:
    steps = choice.choice([100, 1000, 10_000_000])
    mode = choice.choice(["time", "step", "exp"])
    event = {"type": "gaussian", "noise_multiplier": choice.choice([1.5, 5.0, 10.0])}
    if choice.randrange(5):
        q = choice.choice([1e-9, 1e-3, 0.5, 0.9])
        event = {"type": "poisson_sampled", "sampling_probability": q, "event": event}
    return {"type": "decay", "mode": mode, "decay_rate": 0.5 / steps, "steps": steps, "event": event}


def _sampled(choice: random.Random, relation: str) -> Json:
    noise = choice.choice([0.0511, 0.06, 0.2, 1.0, 5.0, 10.0, 1e3, 1e6]) * (1 - choice.random() / 1e3)
    if relation == REPLACE:
        gaussian = {"type": "gaussian", "noise_multiplier": noise}
        if choice.randrange(2):
            return _random_batch(choice, gaussian)
        size = choice.randint(1, 10**9 - 1)
        return {
            "type": "sampled_without_replacement",
            "source_dataset_size": 10**9,
            "sample_size": size,
            "event": gaussian,
        }
    q = choice.choice([1e-12, 1e-5, 0.01, 0.5, 0.999]) * (1 - choice.random() / 1e3)
    inner: Json = choice.choice(
        [
            *({"type": kind, "noise_multiplier": noise} for kind in ("gaussian", "laplace", "discrete_gaussian")),
            {"type": "discrete_laplace", "noise_parameter": 1 / noise, "sensitivity": choice.choice([1, 128, 10**6])},
            {"type": "permute_and_flip", "epsilon": 1 / noise},
            _mixture(choice, noise),
        ]
    )
    if inner["type"] == "gaussian" and choice.randrange(4) == 0:
        return _random_batch(choice, inner)
    return {"type": "poisson_sampled", "sampling_probability": q, "event": inner}


def _mixture(choice: random.Random, noise: float) -> Json:
    sizes = [0.0, *sorted(choice.random() for _ in range(choice.choice([1, 3, 30, 62]))), 1.0]
    others = (1 - 2.0**-10) / (len(sizes) - 1)
    return {
        "type": "mixture_of_gaussians",
        "standard_deviation": noise,
        "sensitivities": sizes,
        "sampling_probs": [others] * (len(sizes) - 1) + [2.0**-10],
    }


def _random_batch(choice: random.Random, event: Json) -> Json:
    size = choice.randint(1, 10**9)
    if choice.randrange(2):
        places = max(1, int(size * choice.choice([1e-6, 1e-2, 1.0, 5.0])))
        return {
            "type": "sampled_with_replacement",
            "source_dataset_size": size,
            "sample_size": min(places, 10**9),
            "event": event,
        }
    q = choice.choice([1e-9, 1e-3, 0.5])
    return {
        "type": "truncated_poisson_sampled",
        "source_dataset_size": size,
        "sampling_probability": q,
        "truncated_batch_size": max(1, int(size * q * choice.choice([0.5, 1.0, 1.1]))),
        "event": event,
    }


def _leaf(choice: random.Random, relation: str) -> Json:
    how = choice.randrange(6)
    if how == 0:
        return {"type": "exponential", "epsilon": choice.uniform(1e-3, 1e4)}
    if how == 1:
        return {"type": "epsilon_delta", "epsilon": choice.uniform(1e-3, 1e4), "delta": 1e-12}
    return _sampled(choice, relation)
