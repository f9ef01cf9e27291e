"""Page of a run."""

from typing import Final

from fastapi import Request, Response

from app.accounting.events import DpEvent, mechanisms_in, type_name
from app.api.schemas.steps import refusal_facts, refusal_text
from app.charts.run_charts import noise_chart, run_chart, sampling_chart, sampling_of
from app.dashboard.formatting import limit
from app.dashboard.page_context import PageDep, router
from app.ledger.decisions import Decision
from app.ledger.deviations import DeviationKind
from app.ledger.event_inspection import smallest_noise
from app.ledger.reservations import has_lapsed
from app.service.queries.run_detail import get_run_detail, run_change_token

routes = router()

KINDS: Final = {
    DeviationKind.SAMPLER: "how the data are sampled",
    DeviationKind.SAMPLING_PROBABILITY: "sampling probability",
    DeviationKind.MECHANISM: "mechanism",
    DeviationKind.NOISE_MULTIPLIER: "noise multiplier",
    DeviationKind.EVENT: "event",
    DeviationKind.STEPS: "steps",
    DeviationKind.STEPS_PER_HOUR: "steps an hour",
}
"""Labels of deviations."""


@routes.get("/runs/{run_id}")
def show_run(run_id: str, request: Request, page: PageDep) -> Response:
    """Show the spending, refusals, deviations and reservations of a run."""
    page.check_etag(page.minute, run_change_token(page.context, run_id))
    seen = get_run_detail(page.context, run_id)
    return page.render(
        "run.html",
        seen=seen,
        record=seen.record,
        run=seen.record.run,
        event=None if seen.record.run.event is None else event_words(seen.record.run.event),
        chart=run_chart(seen),
        traits=[chart for chart in (noise_chart(seen), sampling_chart(seen)) if chart is not None],
        why=_why,
        signed=request.app.state.signer is not None,
        kinds=KINDS,
        lapsed=lambda reservation: has_lapsed(reservation, page.context.lapsed_by),
    )


def event_words(event: DpEvent) -> str:
    """Describe an event in words."""
    mechanisms = " and ".join(dict.fromkeys(type_name(leaf).replace("_", " ") for leaf in mechanisms_in(event)))
    words = [mechanisms[:1].upper() + mechanisms[1:]]
    noise, sampled = smallest_noise(event), sampling_of(event)
    if noise is not None:
        words.append(f"noise multiplier {limit(noise)}")
    if sampled is not None:
        words.append(f"Poisson sampling with probability {limit(sampled)}")
    return ", ".join(words)


def _why(refused: Decision) -> str:
    return refusal_text(refusal_facts(refused), refused.binding_account_path, refused.requested_count)
