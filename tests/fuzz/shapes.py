"""Bodies after the OpenAPI document: what a member means by its name, anything by its schema; and what breaks them."""

import copy
import random
from collections.abc import Callable
from typing import Any, Final

from tests.api.invalid_bodies import WRONG, schema_of
from tests.api.operations import Operation, resolved
from tests.fuzz.known_objects import KnownObjects

Json = Any
MOST_NESTED: Final = 6

NOISES: Final = (1e-3, 0.3, 0.8, 1.1, 4.0, 20.0, 1e3)
"""The first is so little that a report of a thousand steps has no epsilon."""

POLICIES: Final[tuple[dict[str, Json], ...]] = (
    *({}, {}, {"max_delta": 0.01}, {"require_limit": True}),
    {"approval_above_epsilon": 5.0},
    {"max_unapproved_epsilon_per_budget": 3.0},
)
RATES: Final = (1e-4, 0.01, 0.3, 1.0)


class Shapes:
    """Makes bodies for one organisation's requests."""

    def __init__(self, objects: KnownObjects, organisation: str) -> None:
        self._world = objects
        self._choice = objects.choice
        self._organisation = organisation

    def body(self, operation: Operation) -> Json:
        """A body that may well be taken."""
        usual = self._usual(operation.id)
        if usual is not None and self._choice.random() < 0.8:
            return usual
        return self._made("", schema_of(operation), 0)

    def broken(self, body: Json) -> Json:
        """The same with one place made wrong."""
        changed = copy.deepcopy(body)
        holder = self._some_place(changed)
        wrong = self._choice.choice(list(WRONG.values()))
        if isinstance(holder, dict) and holder:
            name = self._choice.choice(list(holder))
            how = self._choice.randrange(4)
            if how == 0:
                del holder[name]
            elif how == 1:
                holder[f"{name}s"] = wrong
            else:
                holder[name] = wrong
        elif isinstance(holder, list) and holder:
            holder[self._choice.randrange(len(holder))] = wrong
        else:
            changed = wrong
        return changed

    def _usual(self, operation: str) -> Json:
        """What clients mostly send where members exclude each other; None: any member may stand beside any other."""
        choice, sent = self._choice, {"event": event(self._choice), "count": self._choice.choice((1, 5, 100))}
        limit = {"epsilon": choice.choice((0.5, 3.0)), "delta": 1e-5}
        counted = {"events": self._counted()}
        if operation == "authorizeSteps":
            steps = choice.choice(({}, {}, {"count": choice.choice((1, 1, 10, 3000))}, sent, counted))
            return steps | choice.choice(({}, {}, {"on_exceed": "pause"}, {"mode": "report"}, {"first_step": 0}))
        if operation in {"createRun", "createExperiment"}:
            more = choice.choice(({}, {"limit": limit}, {"planned": self._counted()}, {"plan": self._counted()}))
            more = more if operation == "createRun" else {"charging_mode": choice.choice(("each_run", "composed"))}
            own = {} if "charging_mode" in more else {"event": event(choice)}
            return {"name": self._world.new_name(), "budget": self._path("budget")} | own | more
        planned = {"computeEpsilon": counted | {"delta": 1e-5}, "computeDelta": counted | {"epsilon": 2.0}}
        planned["computeEpsilonTrajectory"] = planned["computeEpsilon"] | {"max_points": 20}
        planned["findMaxSteps"] = limit | {"event": sent["event"]}
        planned["findNoiseMultiplier"] = planned["findSamplingProbability"] = limit | sent
        planned["computeLaplaceCost"] = {"bound": 1.0, "l1_sensitivity": 2}
        return planned.get(operation)

    def _some_place(self, body: Json) -> Json:
        """A body, or an object or array somewhere in it."""
        while self._choice.random() < 0.6:
            inner = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
            inside = [value for value in inner if isinstance(value, dict | list)]
            if not inside:
                break
            body = self._choice.choice(inside)
        return body

    def _made(self, name: str, schema: dict[str, Any], depth: int) -> Json:
        meant = self._meant(name)
        if meant is not None:
            return meant
        whole = resolved(schema)
        for union in ("anyOf", "oneOf"):
            if union in whole:
                return self._made(name, self._choice.choice([whole[union][0], *whole[union]]), depth + 1)
        if "const" in whole or "enum" in whole:
            return whole.get("const", self._choice.choice(whole.get("enum", [None])))
        if isinstance(kinds := whole.get("type"), list):
            whole = whole | {"type": self._choice.choice([kinds[0], *kinds])}
        if whole.get("type") == "object":
            return self._object(whole, depth)
        if whole.get("type") == "array":
            few = 0 if depth > MOST_NESTED else self._choice.choice((0, 1, 1, 2, 3))
            return [self._made(name, whole["items"], depth + 1) for _ in range(max(few, whole.get("minItems", 0)))]
        return self._simple(whole)

    def _object(self, whole: dict[str, Any], depth: int) -> Json:
        required = whole.get("required", [])
        share = 0.0 if depth > MOST_NESTED else self._choice.choice((0.0, 0.15, 0.15, 0.4))
        members = whole.get("properties", {})
        if members.keys() == {"policy", "reason"}:
            share = 0.0
        return {
            name: self._made(name, member, depth + 1)
            for name, member in members.items()
            if name in required or self._choice.random() < share
        }

    def _simple(self, whole: dict[str, Any]) -> Json:
        kind = whole.get("type")
        if kind == "boolean":
            return self._choice.random() < 0.5
        if kind in {"integer", "number"}:
            low = whole.get("minimum", whole.get("exclusiveMinimum", 0))
            high = whole.get("maximum", whole.get("exclusiveMaximum", low + 100))
            near = min(high, low + self._choice.choice((1, 2, 10, 1000)))
            value = self._choice.choice((low, high, near, near))
            return int(value) if kind == "integer" else float(value)
        return None if kind == "null" else self._choice.choice(("some", "x", "", "Grüße", "a" * 200))

    def _meant(self, name: str) -> Json:
        """What a member of this name mostly holds; None: its schema decides."""
        if self._choice.random() < 0.05:
            return None
        made: dict[str, Callable[[], Json]] = {
            "event": lambda: event(self._choice),
            **dict.fromkeys(("events", "plan", "planned", "other_events"), self._counted),
            "limit": lambda: {
                "epsilon": self._choice.choice((0.5, 1.0, 3.0, 8.0, 50.0)),
                "delta": self._choice.choice((1e-5, 1e-5, 1e-6)),
            },
            "name": self._world.new_name,
            "neighboring_relation": lambda: self._choice.choice(("add_or_remove_one",) * 4 + ("replace_special",)),
            "privacy_unit": lambda: "user",
            "composition": lambda: self._choice.choice(("sequential", "sequential", "parallel")),
            "parent": lambda: self._path("population", "population", "budget"),
            "budget": lambda: self._path("budget"),
            "budgets": lambda: [self._path("budget") for _ in range(2)],
            "account": lambda: self._world.some_id(self._organisation, "pop", "bud", "run"),
            "scope": lambda: self._path("population", "budget"),
            "preceding": lambda: {"reservation": self._world.some_id(self._organisation, "res"), "steps_executed": 1},
            "first_step": lambda: self._choice.choice((0, 1, 5)),
            "attempt": lambda: self._choice.choice((1, 1, 1, 2)),
            "count": lambda: self._choice.choice((1, 1, 3, 40, 1000)),
            "lease_seconds": lambda: self._choice.choice((60, 3600)),
            "steps_executed": lambda: self._choice.choice((0, 1, 5)),
            "url": lambda: self._choice.choice(("http://127.0.0.1:9/hook", "https://127.0.0.1:1/x")),
            "policy": lambda: self._choice.choice(POLICIES),
            "reason": lambda: "It was decided.",
            "opens_at": lambda: "2020-01-01T00:00:00Z",
            "closes_at": lambda: "2099-01-01T00:00:00Z",
            "expires_at": lambda: "2099-01-01T00:00:00Z",
            "role": lambda: self._choice.choice(("viewer", "trainer", "admin")),
        }
        return made[name]() if name in made else None

    def _path(self, *kinds: str) -> str:
        return self._world.some_path(self._organisation, *kinds)

    def _counted(self) -> Json:
        number = self._choice.choice((1, 1, 2, 5))
        return [{"event": event(self._choice), "count": self._choice.choice((1, 1, 10, 500))} for _ in range(number)]


def event(choice: random.Random, depth: int = 0) -> Json:
    """An event, mostly one of which something is proven."""
    noise = choice.choice(NOISES) if choice.random() < 0.8 else round(choice.uniform(0.3, 30), 3)
    plain = {"type": "gaussian", "noise_multiplier": noise}
    sampled = {"type": "poisson_sampled", "sampling_probability": choice.choice(RATES), "event": plain}
    if depth > 2 or choice.random() < 0.6:
        return choice.choice((plain, sampled, sampled))
    inner = event(choice, depth + 1)
    return choice.choice(
        (
            {"type": "laplace", "noise_multiplier": noise},
            {"type": "discrete_gaussian", "noise_multiplier": noise, "sensitivity": choice.choice((None, 1, 20))},
            {"type": "discrete_laplace", "noise_parameter": 1 / noise, "sensitivity": choice.choice((1, 20))},
            {"type": "exponential", "epsilon": choice.choice((0.01, 1.0))},
            {"type": "permute_and_flip", "epsilon": choice.choice((0.01, 1.0))},
            {
                "type": "mixture_of_gaussians",
                "standard_deviation": 2 * noise,
                "sensitivities": [0.0, 1.0, 2.0],
                "sampling_probs": choice.choice(([0.9, 0.09, 0.01], [0.0, 0.5, 0.5])),
            },
            {"type": "epsilon_delta", "epsilon": 0.1, "delta": choice.choice((0.0, 1e-9))},
            {"type": "zcdp", "rho": 0.001},
            {"type": "randomized_response", "noise_parameter": 0.5, "num_buckets": 4},
            {"type": "adaptive_clipping", "noise_multiplier": noise},
            {"type": "tree_aggregation", "noise_multiplier": noise, "step_counts": [7, 8]},
            {"type": "self_composed", "count": choice.choice((1, 5)), "event": inner},
            {"type": "composed", "events": [inner, plain]},
            {"type": "group_privacy", "group_size": 2, "event": inner},
            {"type": "repeat_and_select", "mean": 3.0, "shape": choice.choice((None, 1.0)), "event": inner},
            {"type": "decay", "mode": "time", "decay_rate": 1e-3, "steps": 30, "event": sampled},
            {
                "type": "sampled_without_replacement",
                "source_dataset_size": 1000,
                "sample_size": choice.choice((10, 1000)),
                "event": plain,
            },
            {
                "type": "sampled_with_replacement",
                "source_dataset_size": 1000,
                "sample_size": choice.choice((10, 1000)),
                "event": plain,
            },
            {
                "type": "truncated_poisson_sampled",
                "source_dataset_size": 1000,
                "sampling_probability": choice.choice(RATES),
                "truncated_batch_size": choice.choice((20, 1001)),
                "event": plain,
            },
        )
    )
