"""Code samples for a plan; tests run them."""

import json
from collections.abc import Mapping
from typing import Any

from app.accounting.events import DpEvent, Gaussian, PoissonSampled, SampledWithoutReplacement, event_to_dict
from app.service.planning.estimator import PlanDraft


def as_curl(sketch: PlanDraft, event: DpEvent) -> str:
    """Write the epsilon request of a draft as a curl command."""
    body: dict[str, Any] = {"events": [{"event": event_to_dict(event), "count": sketch.steps}], "delta": sketch.delta}
    return _curl("/v1/accounting/epsilon", body | _setting(sketch))


def as_python(sketch: PlanDraft, event: DpEvent) -> str:
    """Write the same for the Python client, with a run that asks before each step."""
    maker, made = _made(event)
    setting = "".join(f", {name}={value!r}" for name, value in _setting(sketch).items())
    return "\n".join(
        (
            f"from epsilon_ledger import LedgerClient, {', '.join(sorted(maker))}",
            "",
            f"step = {made}",
            "with LedgerClient() as ledger:",
            f'    events = [{{"event": step, "count": {sketch.steps}}}]',
            f"    cost = ledger.compute_epsilon(events, delta={sketch.delta!r}{setting})",
            '    print(f"epsilon {cost.epsilon:.4f} at delta {cost.delta:g}")',
        )
    )


def _curl(path: str, body: Mapping[str, Any]) -> str:
    return " \\\n  ".join(
        (
            f'curl "$EPSILON_LEDGER_URL{path}"',
            '-H "Authorization: Bearer $EPSILON_LEDGER_API_KEY"',
            '-H "Content-Type: application/json"',
            f"--data '{json.dumps(body)}'",
        )
    )


def _setting(sketch: PlanDraft) -> dict[str, Any]:
    found: dict[str, Any] = {"neighboring_relation": str(sketch.relation)}
    return found if sketch.size is None else found | {"population_size": sketch.size}


def _made(event: DpEvent) -> tuple[set[str], str]:
    """Get the client's factory functions of an event, and the expression."""
    match event:
        case Gaussian(noise_multiplier=noise):
            return {"gaussian"}, f"gaussian({noise!r})"
        case PoissonSampled(sampling_probability=probability, event=inner):
            names, made = _made(inner)
            return names | {"poisson_sampled"}, f"poisson_sampled({probability!r}, {made})"
        case SampledWithoutReplacement(source_dataset_size=size, sample_size=batch, event=inner):
            names, made = _made(inner)
            return names | {"sampled_without_replacement"}, f"sampled_without_replacement({size}, {batch}, {made})"
    raise AssertionError("a sketch has no other events")
