"""The body of an admission from its run's template is what the members are as JSON."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from app.api.routers import steps
from app.api.routers.steps import MOST_TEMPLATES, admitted_content
from app.api.schemas.steps import admitted_members
from app.ledger.admission import Reading
from app.ledger.audit import Actor
from app.ledger.decisions import Decision, DecisionOutcome

texts = st.text(max_size=12) | st.sampled_from(["%", "%d%%", '"\\', "mimic/icu-team", "\u2028é"])
numbers = st.floats(min_value=0) | st.sampled_from([1e-5, 1e16, 1e-300, 3.0, 0.1])
counts = st.integers(0, 2**53)


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    return Decision(
        run_id=draw(texts),
        position=0,
        attempt=draw(st.integers(1, 3)),
        outcome=draw(st.sampled_from([DecisionOutcome.ADMITTED, DecisionOutcome.REPORTED])),
        steps=(),
        first_step=draw(counts),
        step_count=draw(counts),
        requested_count=draw(counts),
        reading=Reading(draw(numbers), draw(numbers), draw(numbers)),
        steps_remaining=draw(st.none() | counts),
        binding_account_id=draw(texts),
        binding_account_path=draw(texts),
        refusal_details=None,
        ended_plans=draw(st.sampled_from([None, None, '[{"account": "a"}]'])),
        request_fingerprint="",
        idempotency_key=None,
        reservation_id=draw(st.none() | texts),
        created_at=datetime(2026, 11, 29, tzinfo=UTC),
        actor=Actor("key", None),
    )


@given(decisions(), decisions(), st.booleans())
def test_body_of_an_admission_is_its_members_as_json(decision: Decision, other: Decision, dry_run: bool) -> None:  # noqa: FBT001 - Hypothesis'
    later = decision._replace(
        first_step=other.first_step, step_count=other.step_count, reading=other.reading, steps_remaining=1
    )
    for each in (decision, later, decision):
        members = admitted_members(each, dry_run=dry_run)
        assert admitted_content(each, dry_run=dry_run) == to_json(members, inf_nan_mode="strings")


@given(decisions())
def test_number_of_templates_is_bounded(decision: Decision) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_templates", dict.fromkeys(range(MOST_TEMPLATES)))
        admitted_content(decision._replace(steps_remaining=1, ended_plans=None))
        assert len(steps._templates) == 1
