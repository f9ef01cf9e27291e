"""OpenTelemetry spans of an admission; no-ops unless tracing is on.

The OpenTelemetry API comes with FastAPI; export needs the extra `telemetry` (app/tracing_setup.py).
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context


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

    def span(self, name: str) -> AbstractContextManager[object]:
        """Create a child span of the current one."""
        return _NOTHING if self._tracer is None else self._tracer.start_as_current_span(name)

    def shared(self, name: str, callers: Iterable[trace.SpanContext | None]) -> AbstractContextManager[object]:
        """Create a span of its own trace for several requests, linked to each of them."""
        if self._tracer is None:
            return _NOTHING
        links = [trace.Link(caller) for caller in callers if caller is not None]
        return self._tracer.start_as_current_span(
            name, context=Context(), links=links, attributes={"epsilon_ledger.commands": len(links)}
        )

    def here(self) -> trace.SpanContext | None:
        """Return the current span's context, or None."""
        return None if self._tracer is None else trace.get_current_span().get_span_context()

    def name_route(self, method: str, template: str) -> None:
        """Set the route on the current span, for requests that FastAPI does not route."""
        if self._tracer is not None:
            span = trace.get_current_span()
            span.update_name(f"{method} {template}")
            span.set_attribute("http.route", template)

    def trace_id(self) -> str | None:
        """Return the current trace id in hex, or None."""
        here = self.here()
        return trace.format_trace_id(here.trace_id) if here is not None and here.is_valid else None


_NOTHING: Final = nullcontext()

TRACES: Final = SpanFactory()
