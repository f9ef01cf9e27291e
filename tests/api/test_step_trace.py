"""How much code one step goes through."""

from benchmarks.step_trace import trace_step

MOST = {"calls": 174, "functions": 119, "files": 35, "switches between files": 107, "climbs back": 0}
"""ADR 0032 has what it was, and ADR 0054 why a step looks up its epsilon; lower these when the way gets shorter."""


def test_step_goes_through_no_more_code_than_recorded() -> None:
    figures = trace_step().figures()
    assert {name: figures[name] for name in MOST if figures[name] > MOST[name]} == {}
