"""Rules of the server: input, metrics, alerts, shutdown."""

from tests.mutation_cases.case import Mutation

CASES = (
    Mutation(
        "NaN is a number",
        "app/api/strict.py",
        "parse_constant=_constant",
        "parse_constant=float",
        ("tests/api/test_strict.py",),
    ),
    Mutation(
        "of two equal keys of an object the last one counts",
        "app/api/strict.py",
        "object_pairs_hook=_object, ",
        "",
        ("tests/api/test_bad_requests.py", "tests/api/test_bad_bodies.py"),
    ),
    Mutation(
        "alerts are sent to private addresses",
        "app/service/alerts/guard.py",
        "    return found.is_global and not any(found in network for network in _MORE_THAN_PRIVATE)",
        "    return True",
        ("tests/service/test_alert_guard.py",),
    ),
    Mutation(
        "metrics name organisations to whoever asks",
        "app/api/routers/metrics.py",
        "named = 0 if token is None else request.app.state.metrics_top_accounts",
        "named = request.app.state.metrics_top_accounts",
        ("tests/api/test_metrics.py",),
    ),
    Mutation(
        "metrics are told without their token",
        "app/api/routers/metrics.py",
        "    if token is not None:\n",
        "    if token is None:\n",
        ("tests/api/test_metrics.py",),
    ),
    Mutation(
        "who keeps a connection is cut off at once when the service stops",
        "app/serving.py",
        "        await self._hear_out(ends_at)\n",
        "",
        ("tests/reliability/test_shutdown.py",),
    ),
    Mutation(
        "a process that stops is ready",
        "app/api/routers/health.py",
        "    if getattr(request.state, STOPPING, False):\n",
        "    if False:\n",
        ("tests/reliability/test_shutdown.py",),
    ),
    Mutation(
        "spans hold the keys that stood in a URL",
        "app/telemetry.py",
        "span.set_attribute(name, without_secrets(said))",
        "span.set_attribute(name, said)",
        ("tests/api/test_traces.py",),
    ),
)
