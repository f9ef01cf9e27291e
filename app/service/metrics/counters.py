"""What a process counts of its own work; several workers add theirs up in files of the package prometheus-client.

Labels have few values, all known beforehand: no request can make a new one up.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from app.persistence.repositories.decisions import DecisionOutcome

disable_created_metrics()  # type: ignore[no-untyped-call] # a series each, which nobody asks for

REGISTRY: Final = CollectorRegistry()
"""What this process alone has counted."""

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

REPLAYED: Final = "replayed"

_DECISIONS = Counter(
    "epsilon_ledger_decisions", "Answers to requests for steps, by outcome.", ["outcome"], registry=REGISTRY
)
_STEPS = Counter(
    "epsilon_ledger_steps", "Steps that were asked for, by outcome; none of them twice.", ["outcome"], registry=REGISTRY
)
_ADMISSION = Histogram(
    "epsilon_ledger_admission_seconds",
    "From the request for steps to its durable answer, with the wait for its turn.",
    buckets=SECONDS,
    registry=REGISTRY,
)
_COMMIT = Histogram(
    "epsilon_ledger_commit_seconds", "One group's transaction, with its commit.", buckets=SECONDS, registry=REGISTRY
)
_GROUP = Histogram(
    "epsilon_ledger_group_commands", "Requests that were written in one transaction.", buckets=SIZES, registry=REGISTRY
)
_FAILURES = Counter(
    "epsilon_ledger_commit_failures", "Groups that could not be written, by cause.", ["cause"], registry=REGISTRY
)
_HTTP = Histogram(
    "epsilon_ledger_http_request_seconds",
    "How long requests took, by the template of their path.",
    ["method", "route", "status"],
    buckets=SECONDS,
    registry=REGISTRY,
)
_PROBLEMS = Counter("epsilon_ledger_problems", "Problems that were answered, by code.", ["code"], registry=REGISTRY)
_DELIVERIES = Counter(
    "epsilon_ledger_deliveries", "Attempts to deliver an alert, by result.", ["result"], registry=REGISTRY
)
_BACKGROUND = Gauge(
    "epsilon_ledger_background_last_success_timestamp_seconds",
    "When work beside the requests was done last.",
    ["task"],
    registry=REGISTRY,
    multiprocess_mode="max",
)

_VERIFICATIONS = Counter(
    "epsilon_ledger_verifications",
    "Verifications of an organisation that were asked for by HTTP, by result.",
    ["result"],
    registry=REGISTRY,
)

_decided = {
    outcome: _DECISIONS.labels(outcome) for outcome in (*map(str, DecisionOutcome), REPLAYED) if outcome != "forfeited"
}
_stepped = {outcome: _STEPS.labels(outcome) for outcome in _decided if outcome != REPLAYED}
_failed = {cause: _FAILURES.labels(cause) for cause in ("database", "error")}
_delivered = {result: _DELIVERIES.labels(result) for result in ("delivered", "failed")}
_verified = {result: _VERIFICATIONS.labels(result) for result in ("sound", "unsound")}
_http: dict[tuple[str, str, int], Histogram] = {}


def observe_admission(seconds: float) -> None:
    """Count how long a request for steps waited for its answer."""
    _ADMISSION.observe(seconds)


def group_written(size: int, seconds: float) -> None:
    """Count a group that was committed."""
    _GROUP.observe(size)
    _COMMIT.observe(seconds)


def group_failed(*, foreseen: bool) -> None:
    """Count a group that could not be written: by the database's state, or by a mistake of the service."""
    _failed["database" if foreseen else "error"].inc()


def count_decisions(decided: Iterable[tuple[str, int]]) -> None:
    """Count the decisions of a group; errors of the rules are counted as problems, where they are answered.

    Args:
        decided: of each, its outcome or `REPLAYED`, and how many steps were asked for.
    """
    told: dict[str, list[int]] = {}
    for outcome, count in decided:  # of a whole group: one count for many costs less than many
        told.setdefault(outcome, []).append(count)
    for outcome, counts in told.items():
        _decided[outcome].inc(len(counts))
        if outcome != REPLAYED:
            _stepped[outcome].inc(sum(counts))


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    """Count a request.

    Args:
        method: one that HTTP knows, or "other".
        route: the template of its path, or "none".
        status: of the reply.
        seconds: how long it took.
    """
    key = (method, route, status // 100)
    child = _http.get(key)
    if child is None:
        child = _http[key] = _HTTP.labels(method, route, f"{status // 100}xx")
    child.observe(seconds)


def count_problem(code: str) -> None:
    """Count a problem that is answered."""
    _PROBLEMS.labels(code).inc()


def problems_known(codes: Iterable[str]) -> None:
    """Begin all counts of problems at 0: a rate needs a first value."""
    for code in codes:
        _PROBLEMS.labels(code)


def delivered(*, acknowledged: bool) -> None:
    """Count an attempt to deliver an alert."""
    _delivered["delivered" if acknowledged else "failed"].inc()


def verified(*, sound: bool) -> None:
    """Count a verification of an organisation."""
    _verified["sound" if sound else "unsound"].inc()


def background_done(task: str) -> None:
    """Note that work beside the requests was done just now."""
    _BACKGROUND.labels(task).set_to_current_time()
