"""Planner page: cost of a training, what fits a limit, and code samples, which tests run."""

import asyncio
import json
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Final, Literal

from anyio import to_thread
from fastapi import Response
from pydantic import Field, ValidationInfo, field_validator

from app.accounting.events import (
    MAX_NOISE_MULTIPLIER,
    MIN_NOISE_MULTIPLIER,
    DpEvent,
    Gaussian,
    NeighboringRelation,
    PoissonSampled,
    SampledWithoutReplacement,
    event_to_dict,
)
from app.charts.model import Axis, Chart, Point, Series, SeriesRole
from app.dashboard.form_fields import Fields, read_fields
from app.dashboard.formatting import RELATIONS
from app.dashboard.page_context import PageContext, PageDep, router
from app.ledger.wording import format_exact
from app.planning.estimator import Curve, Estimate, PlanDraft, estimate
from app.service.queries.overview import find_accounts, read_change_token
from app.service.worker_pool import WORKER_POOL, Job

routes = router()

MOST_ACCOUNTS: Final = 12
"""Accounts listed with a link to their what-if form."""

ACCOUNTANTS: Final = {
    "rdp": ("RDP accountants", "what Opacus and dp_accounting print by Rényi orders"),
    "pld": ("PLD accountants", "what dp_accounting prints by loss distributions, and Opacus as PRV"),
}
"""Other accountants whose numbers are shown: name and explanation."""

SLIDERS: Final = {
    "noise": "0.3 20 log",
    "rate": "0.00001 1 log",
    "batch": "1 10000 log",
    "size": "100 10000000 log",
    "steps": "1 1000000 log",
    "epsilon": "0.1 20 log",
    "delta": "1e-10 0.01 log",
}
"""Range and scale of each slider; the field beside it accepts more."""

Whole = Annotated[int, Field(ge=1, le=1_000_000_000)]


class PlannerFields(Fields):
    """Fields of the planner."""

    noise: float = Field(default=1.1, ge=MIN_NOISE_MULTIPLIER, le=MAX_NOISE_MULTIPLIER)
    sampling: Literal["rate", "batch"] = "rate"
    rate: float = Field(default=0.01, gt=0, le=1)
    size: Whole = 60_000
    batch: Whole = 600
    steps: Whole = 5000
    epsilon: float = Field(default=3.0, gt=0, le=10_000)
    delta: float = Field(default=1e-5, ge=1e-30, lt=0.5)
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE

    @field_validator("batch")
    @classmethod
    def _within(cls, batch: int, info: ValidationInfo) -> int:
        if info.data.get("sampling") == "batch" and batch > info.data.get("size", batch):
            raise ValueError("must not exceed the data set size")
        return batch

    def sketch(self) -> PlanDraft:
        """Convert to the planner's draft."""
        by_batch = self.sampling == "batch"
        return PlanDraft(
            noise=self.noise,
            probability=self.batch / self.size if by_batch else self.rate,
            steps=self.steps,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            batch=self.batch if by_batch else None,
            size=self.size if by_batch else None,
        )


@routes.get("/planner")
async def show_planner(page: PageDep) -> Response:
    """Show a plan and its cost, computed by a worker process so that no request thread waits."""
    page.check_etag(await to_thread.run_sync(read_change_token, page.context))
    fields, faults = read_fields(PlannerFields, page.query)
    found = None
    if fields is not None:
        calculation = Job(estimate, (fields.sketch(),))
        found = await asyncio.wrap_future(WORKER_POOL.submit(f"plans {page.context.organisation_id}", calculation))
    return await to_thread.run_sync(_shown, page, found, faults)


def _shown(page: PageContext, found: Estimate | None, faults: dict[str, str]) -> Response:
    wanted = page.query.get("budget", "").strip()[:200]
    accounts, more = find_accounts(page.context, page.state.account_statuses, wanted=wanted, most=MOST_ACCOUNTS)
    return page.render(
        "planner.html",
        values=_values(page.query),
        faults=faults,
        found=found,
        chart=_chart(found),
        relations_compared=_by_relation(found),
        snippets=_snippets(found),
        relations=RELATIONS,
        sliders=SLIDERS,
        wanted=wanted,
        accounts=accounts,
        more=more,
    )


def _values(given: dict[str, str]) -> dict[str, str]:
    """Get the texts of the fields: as given, else defaults."""
    defaults = {name: field.default for name, field in PlannerFields.model_fields.items()}
    written = {
        name: format_exact(value) if isinstance(value, float) else str(value) for name, value in defaults.items()
    }
    return written | {name: text for name, text in given.items() if name in defaults and text.strip()}


@dataclass(frozen=True, slots=True)
class Row:
    """A number under each relation; None where no bound is known."""

    title: str
    note: str
    numbers: list[float | None]


def _by_relation(found: Estimate | None) -> list[Row]:
    """List the plan's numbers by neighboring relation, and those of other accountants."""
    if found is None:
        return []
    costs = [found.costs[relation] for relation in RELATIONS]
    limits = [cost.limit_needed for cost in costs if cost.limit_needed is not None]
    others = [{each.name: each.value for each in cost.comparisons} for cost in costs]
    return [
        Row("Epsilon", "what the training loses", [cost.epsilon for cost in costs]),
        Row("Limit needed with a plan", "declared by the account", [limit.with_plan for limit in limits]),
        Row("Limit needed without a plan", "nothing declared", [limit.without_plan for limit in limits]),
        *(Row(title, note, [each.get(name) for each in others]) for name, (title, note) in ACCOUNTANTS.items()),
    ]


def _chart(found: Estimate | None) -> Chart:
    """Chart a plan's epsilon over its steps and the limit that they need, beside other noises and the draft's limit."""
    lines: list[Series] = []
    if found is not None and found.epsilons.points:
        ends = tuple((float(step), found.sketch.epsilon) for step in sorted({1, found.sketch.steps}))
        lines = [
            Series("Epsilon", _finite(found.epsilons)),
            Series("Limit needed with a plan", _finite(found.limits), role=SeriesRole.REFERENCE),
            *(Series(f"Epsilon, noise {format_exact(each.noise)}", _finite(each)) for each in found.others),
            Series("Limit", ends, role=SeriesRole.LIMIT),
        ]
    return Chart("Epsilon over steps", Axis("Step", start=0), Axis("Epsilon", start=0), tuple(lines))


def _finite(curve: Curve) -> tuple[Point, ...]:
    """Get the points of a curve that can be drawn."""
    return tuple((float(step), epsilon) for step, epsilon in curve.points if isfinite(epsilon))


def _snippets(found: Estimate | None) -> list[tuple[str, str, str]]:
    """Get id, name and text of the code samples."""
    if found is None:
        return []
    sketch, event = found.sketch, found.event
    return [("curl", "API request", as_curl(sketch, event)), ("python", "Python client", as_python(sketch, event))]


def as_curl(sketch: PlanDraft, event: DpEvent) -> str:
    """Write the epsilon request of a draft as a curl command."""
    body = {"events": [{"event": event_to_dict(event), "count": sketch.steps}], "delta": sketch.delta}
    return " \\\n  ".join(
        (
            'curl "$EPSILON_LEDGER_URL/v1/accounting/epsilon"',
            '-H "Authorization: Bearer $EPSILON_LEDGER_API_KEY"',
            '-H "Content-Type: application/json"',
            f"--data '{json.dumps(body | _setting(sketch))}'",
        )
    )


def as_python(sketch: PlanDraft, event: DpEvent) -> str:
    """Write the same request for the Python client."""
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
            '    print(f"epsilon {cost.epsilon:.4f}, limit needed with a plan {cost.limit_needed.with_plan:.4f}")',
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
