"""Counters and spans of this process; prometheus-client merges the counters of several workers.

Labels have few, predefined values: no request can create a new one. Spans are no-ops unless tracing is on: the
OpenTelemetry API comes with FastAPI, and export needs the extra `telemetry` (app/tracing_setup.py).
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from app.ledger.runs.decisions import DecisionOutcome

disable_created_metrics()  # type: ignore[no-untyped-call] # one unused series for each counter

REGISTRY: Final = CollectorRegistry()
"""Metrics of this process alone."""

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

REPLAYED: Final = "replayed"


def counter(name: str, help_text: str, *labels: str) -> Counter:
    """Define a counter of this process."""
    return Counter(name, help_text, labels, registry=REGISTRY)


def gauge(name: str, help_text: str, mode: str, *labels: str) -> Gauge:
    """Define a gauge of this process, and the mode in which those of several workers are merged."""
    return Gauge(name, help_text, labels, registry=REGISTRY, multiprocess_mode=mode)  # type: ignore[arg-type]


def _histogram(name: str, help_text: str, buckets: Sequence[float], *labels: str) -> Histogram:
    return Histogram(name, help_text, labels, buckets=buckets, registry=REGISTRY)


_DECISIONS = counter("epsilon_ledger_decisions", "Decided step requests, by outcome.", "outcome")
_STEPS = counter("epsilon_ledger_steps", "Requested steps, by outcome; replays count none.", "outcome")
STEP_AUTHORIZATION = _histogram(
    "epsilon_ledger_step_authorization_duration_seconds",
    "Duration from a step request to its durable answer, including the queue.",
    SECONDS,
)
_COMMIT = _histogram(
    "epsilon_ledger_commit_duration_seconds", "Duration of one batch's transaction, including its commit.", SECONDS
)
_GROUP = _histogram("epsilon_ledger_commit_batch_size", "Step requests written in one transaction.", SIZES)
_FAILURES = counter("epsilon_ledger_commit_failures", "Batches that could not be written, by cause.", "cause")
_HTTP = _histogram(
    "epsilon_ledger_http_request_duration_seconds",
    "Duration of HTTP requests, by path template.",
    SECONDS,
    *("method", "route", "status"),
)
_PROBLEMS = counter("epsilon_ledger_problems", "Problem responses, by code.", "code")
_DELIVERIES = counter("epsilon_ledger_alert_deliveries", "Delivery attempts of alerts, by result.", "result")
_BACKGROUND = gauge(
    "epsilon_ledger_background_task_last_success_timestamp_seconds",
    "Time of the last success of a background task.",
    *("max", "task"),
)
_VERIFICATIONS = counter(
    "epsilon_ledger_verifications", "Verifications by POST /v1/verifications, by result.", "result"
)

_TOKEN_EXCHANGES = counter(
    "epsilon_ledger_token_exchanges",
    "Exchanges of workloads' tokens for keys, by issuer and result.",
    *("issuer", "result"),
)

_decided = {
    outcome: _DECISIONS.labels(outcome) for outcome in (*map(str, DecisionOutcome), REPLAYED) if outcome != "forfeited"
}
_stepped = {outcome: _STEPS.labels(outcome) for outcome in _decided if outcome != REPLAYED}
_failed = {cause: _FAILURES.labels(cause) for cause in ("database", "error")}
_delivered = {result: _DELIVERIES.labels(result) for result in ("delivered", "failed")}
_verified = {result: _VERIFICATIONS.labels(result) for result in ("sound", "unsound")}
_http: dict[tuple[str, str, int], Histogram] = {}


def count_group(size: int, seconds: float, decided: Iterable[tuple[str, int]]) -> None:
    """Record a committed group, with the outcome and the steps of each decision; rule errors count as problems."""
    _GROUP.observe(size)
    _COMMIT.observe(seconds)
    steps: dict[str, list[int]] = {}
    for outcome, count in decided:  # one increment for the group is cheaper than many
        steps.setdefault(outcome, []).append(count)
    for outcome, counts in steps.items():
        _decided[outcome].inc(len(counts))
        if outcome != REPLAYED:
            _stepped[outcome].inc(sum(counts))


def count_failed_group(*, foreseen: bool) -> None:
    """Count a failed group, by a database error (`foreseen`) or another one."""
    _failed["database" if foreseen else "error"].inc()


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    """Record an HTTP request; `method` may be "other", and `route` is a path template, or "none"."""
    key = (method, route, status // 100)
    child = _http.get(key)
    if child is None:
        child = _http[key] = _HTTP.labels(method, route, f"{status // 100}xx")
    child.observe(seconds)


def count_problem(code: str) -> None:
    """Count a problem response."""
    _PROBLEMS.labels(code).inc()


def init_problem_counters(codes: Iterable[str]) -> None:
    """Initialize the problem counters at 0, because a rate needs a first value."""
    for code in codes:
        _PROBLEMS.labels(code)


def count_delivery(*, acknowledged: bool) -> None:
    """Count an attempt to deliver an alert."""
    _delivered["delivered" if acknowledged else "failed"].inc()


def count_verification(*, sound: bool) -> None:
    """Count a verification of an organisation."""
    _verified["sound" if sound else "unsound"].inc()


def count_token_exchange(issuer: str, *, issued: bool) -> None:
    """Count the exchange of a workload's token; `issuer` is a configured name, or "unknown"."""
    _TOKEN_EXCHANGES.labels(issuer, "issued" if issued else "refused").inc()


def record_task_success(task: str) -> None:
    """Record the success of a background task."""
    _BACKGROUND.labels(task).set_to_current_time()


class SpanFactory:
    """Factory of this process's spans; none are created before `begin`."""

    def __init__(self) -> None:
        self._tracer: trace.Tracer | None = None

    def begin(self, tracer: trace.Tracer) -> None:
        """Start creating spans."""
        self._tracer = tracer

    def end(self) -> None:
        """Stop creating spans."""
        self._tracer = None

    @property
    def active(self) -> bool:
        """Whether spans are created."""
        return self._tracer is not None

    def span(self, name: str) -> AbstractContextManager[trace.Span | None]:
        """Create a child span of the current one."""
        return _NOTHING if self._tracer is None else self._tracer.start_as_current_span(name)

    def shared(self, name: str, callers: Iterable[trace.Span | None]) -> AbstractContextManager[object]:
        """Create a span of its own trace for several requests, linked to each of them."""
        if self._tracer is None:
            return _NOTHING
        links = [trace.Link(caller.get_span_context()) for caller in callers if caller is not None]
        return self._tracer.start_as_current_span(
            name, context=Context(), links=links, attributes={"epsilon_ledger.commands": len(links)}
        )

    def trace_id(self) -> str | None:
        """Return the current trace id in hex, or None."""
        here = trace.get_current_span().get_span_context()
        return trace.format_trace_id(here.trace_id) if self._tracer is not None and here.is_valid else None


_NOTHING: Final = nullcontext()

TRACES: Final = SpanFactory()
