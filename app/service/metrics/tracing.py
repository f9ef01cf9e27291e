"""Spans of what takes time in an admission, if somebody traces; if not, nothing is made and nothing is asked.

The interface of OpenTelemetry comes with FastAPI; what sends traces is the extra `telemetry` (app/tracing_setup.py).
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context


class SpanFactory:
    """The spans of this process; until `begin` is called there are none."""

    def __init__(self) -> None:
        self._tracer: trace.Tracer | None = None

    def begin(self, tracer: trace.Tracer) -> None:
        """Make spans from now on."""
        self._tracer = tracer

    def end(self) -> None:
        """Make no spans any more."""
        self._tracer = None

    def span(self, name: str) -> AbstractContextManager[object]:
        """A span beneath the current one, for as long as something is done."""
        return _NOTHING if self._tracer is None else self._tracer.start_as_current_span(name)

    def shared(self, name: str, callers: Iterable[trace.SpanContext | None]) -> AbstractContextManager[object]:
        """A span of what is done for several requests at once: a trace of its own, with a link to each of theirs."""
        if self._tracer is None:
            return _NOTHING
        links = [trace.Link(caller) for caller in callers if caller is not None]
        return self._tracer.start_as_current_span(
            name, context=Context(), links=links, attributes={"epsilon_ledger.commands": len(links)}
        )

    def here(self) -> trace.SpanContext | None:
        """The span that this is done in; None: there is none."""
        return None if self._tracer is None else trace.get_current_span().get_span_context()

    def name_route(self, method: str, template: str) -> None:
        """Say which route a request took that FastAPI did not route."""
        if self._tracer is not None:
            span = trace.get_current_span()
            span.update_name(f"{method} {template}")
            span.set_attribute("http.route", template)

    def trace_id(self) -> str | None:
        """The trace that this belongs to, in hex; None: to none."""
        here = self.here()
        return trace.format_trace_id(here.trace_id) if here is not None and here.is_valid else None


_NOTHING: Final = nullcontext()

TRACES: Final = SpanFactory()
