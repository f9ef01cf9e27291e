"""Optional export of traces to an OpenTelemetry collector."""

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from fastapi.telemetry import TelemetryConfig

from app.logging_config import TextFormatter, redact_secrets
from app.service.metrics import TRACES
from app.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""OpenTelemetry's variables that enable traces; its other variables apply too."""

OFF: Final[TelemetryConfig] = {"tracing": False, "metrics": False, "logs": False}
"""Disabled explicitly, because OpenTelemetry's own check takes as long as parsing a step request."""

_URL_ATTRIBUTES: Final = ("url.path", "url.query")
"""Attributes from the URL, which may contain a key by mistake."""

_logger = logging.getLogger(__name__)


def configure_tracing() -> TelemetryConfig:
    """Configure FastAPI's tracing from the environment; off without a collector."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return OFF
    if find_spec("opentelemetry.exporter") is None or find_spec("opentelemetry.sdk") is None:
        _logger.warning("%s is set, but no traces are sent: pip install 'epsilon-ledger[telemetry]'.", ENDPOINTS[0])
        return OFF
    provider = _provider()
    TRACES.begin(provider.get_tracer("epsilon-ledger"))
    TextFormatter.trace_id = TRACES.trace_id
    return {
        "tracing": True,
        "tracer_provider": provider,
        "metrics": False,  # served to Prometheus
        "logs": False,  # they would contain request data
        "operation_spans": False,
    }


def _provider() -> "TracerProvider":
    # These packages are an optional extra.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - as said
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource  # noqa: PLC0415 - as said
    from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider  # noqa: PLC0415 - as said
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as said

    class Clean(SpanProcessor):
        """Redact secrets in span attributes."""

        def on_start(self, span: Span, parent_context: object = None) -> None:
            del parent_context
            for name in _URL_ATTRIBUTES:
                said = (span.attributes or {}).get(name)
                if isinstance(said, str):
                    span.set_attribute(name, redact_secrets(said))

    named = {SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "epsilon-ledger")}
    provider = TracerProvider(resource=Resource.create({**named, SERVICE_VERSION: VERSION}))
    provider.add_span_processor(Clean())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
