"""Formats of numbers, times and paths on pages."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final

from markupsafe import Markup, escape

from app.accounting.events import NeighboringRelation
from app.api.pagination import encode_cursor
from app.api.schemas.refusals import refusal_facts, refusal_text
from app.api.schemas.steps import ended_plan_text, ended_plans_of, warnings_of
from app.charts.model import PERCENT, count, format_value
from app.dashboard.tables import labelled
from app.ledger import wording
from app.ledger.accounts.account_records import Block
from app.ledger.accounts.metadata import Metadata
from app.ledger.filter.limits import Limit, Unit
from app.ledger.runs.decisions import Decision, DecisionOutcome
from app.ledger.runs.run import EndReason, RunDeclaration
from app.ledger.scheduling.account_status import HALF, AccountStatus, Severity
from app.ledger.settings.allocation import SchedulingRule
from app.ledger.wording import format_exact, without_zeros

_EXPONENT: Final = re.compile(r"(\b[\d.]+e-\d+)")

RULES: Final = {
    SchedulingRule.FIRST_COME: "who has waited longest",
    SchedulingRule.SMALLEST_SHARE: "who asks for the smallest share",
    SchedulingRule.MOST_PACKED: "who takes least of what is left",
}
"""Which reservation a scheduling rule serves first."""

RELATIONS: Final = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "Add or remove one",
    NeighboringRelation.REPLACE_SPECIAL: "Replace with a null record",
    NeighboringRelation.REPLACE_ONE: "Replace one",
}
"""Names of neighboring relations."""

END_REASONS: Final = {
    EndReason.FINISHED: "finished",
    EndReason.BUDGET_EXHAUSTED: "budget used up",
    EndReason.ABORTED: "aborted",
    EndReason.LOST: "lost",
    EndReason.NOT_GRANTED: "reservation not granted",
}
"""How a run ended."""

SEVERITIES: Final = {
    Severity.OVER: "over the limit",
    Severity.EXHAUSTED: "nearly exhausted",
    Severity.LOW: "low",
    Severity.OK: "OK",
}
"""Labels of severities, but for half of a limit."""


def epsilon(loss: float | None) -> str:
    """Format a loss with four significant digits, rounded up so that none looks smaller."""
    return "∞" if loss is None else format_value(loss)


def percent(share: float) -> str:
    """Format a share in percent, as messages do, with a space that does not break."""
    return wording.percent(share, PERCENT)


def limit(number: float) -> Markup:
    """Format a configured number in text, its thousands apart."""
    text = format_exact(number)
    whole, point, rest = text.partition(".")
    return unbroken(count(int(whole)) + point + rest if whole.isdigit() else text)


def limit_words(whole: Limit | Mapping[str, Any]) -> Markup:
    """Write a limit, or its facts, in its unit."""
    return unbroken(str(_limit_of(whole)))


def limit_symbols(whole: Limit | Mapping[str, Any]) -> Markup:
    """Write a limit as "ε 3 at δ 1e-5"."""
    at = _limit_of(whole)
    return Markup("{} at δ {}").format(limit_value(at), limit(at.delta)) if _has_delta(at) else limit_value(at)


def limit_value(whole: Limit | Mapping[str, Any]) -> Markup:
    """Write the value of a limit with its unit."""
    at = _limit_of(whole)
    return Markup("{} {}").format("ε" if at.unit is Unit.EPSILON else at.unit, limit(at.value))


def limit_delta(whole: Limit) -> Markup:
    """Write the delta of a limit before further words; empty without one."""
    return Markup("at δ {}; ").format(limit(whole.delta)) if _has_delta(whole) else Markup("")


def _limit_of(whole: Limit | Mapping[str, Any]) -> Limit:
    return whole if isinstance(whole, Limit) else Limit.of(whole)


def _has_delta(whole: Limit) -> bool:
    return whole.unit is Unit.EPSILON or whole.delta > 0


def unbroken(text: str) -> Markup:
    """Write numbers such as "1e-06" in a text as 1e-6, and keep them from breaking at their hyphen."""
    parts = enumerate(_EXPONENT.split(without_zeros(text)))
    return Markup("").join(
        Markup('<span class="unbroken">{}</span>').format(part) if place % 2 else escape(part) for place, part in parts
    )


def observed(number: float | str | None) -> str:
    """Format a declared or observed value, whole numbers without a fraction."""
    if number is None:
        return "nothing"
    if isinstance(number, str):
        return number
    return count(int(number)) if number == int(number) else format_exact(float(f"{number:.9g}"))


def facts(source: RunDeclaration | Metadata, *others: str) -> list[tuple[str, str]]:
    """List the names and values of the texts and numbers that were declared, except those that are shown elsewhere."""
    values = {each.name: getattr(source, each.name) for each in fields(source) if each.name not in others}
    return [
        (label(name).capitalize(), observed(value))
        for name, value in values.items()
        if isinstance(value, str | int | float)
    ]


def path(account_path: str) -> Markup:
    """Format a path that may break after each slash."""
    return Markup("/<wbr>").join(account_path.split("/"))


def label(name: object) -> str:
    """Format a constant of the API, such as a neighboring relation or a mechanism, in lower case."""
    known = {str(relation): words for relation, words in RELATIONS.items()}
    return known.get(str(name), str(name).replace("_", " ")).lower()


def moment(at: datetime | None) -> Markup:
    """Format a time in UTC to the minute, with the exact time for scripts, and with seconds on hover.

    The script local_time.js replaces the text by the time in the browser's zone.
    """
    if at is None:
        return Markup("–")  # noqa: RUF001 - a dash is meant
    at = at.astimezone(UTC)
    exact = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shown = Markup('<time datetime="{}" title="{} UTC">{} UTC</time>')
    return shown.format(exact, f"{at:%Y-%m-%d %H:%M:%S}", f"{at:%Y-%m-%d %H:%M}")


def data_period(block: Block) -> str:
    """Format the period of a data block, whose end is excluded, in UTC: it is a boundary of data."""
    start, end = block.data_from.astimezone(UTC), block.data_to.astimezone(UTC)
    if start.time() == end.time() == time.min:
        last = end - timedelta(days=1)
        return f"{start:%Y-%m-%d}" + (f" to {last:%Y-%m-%d}" if last > start else "") + " (UTC dates)"
    return f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, without its end"


def lasting(duration: timedelta) -> str:
    """Format a duration in its largest fitting unit."""
    seconds = duration.total_seconds()
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def seconds(number: float) -> str:
    """Format a number of seconds in its largest fitting unit."""
    return lasting(timedelta(seconds=number))


def percent_value(part: float) -> str:
    """Format a part as the number of a field in percent."""
    return format_exact(float(f"{100 * part:.10g}"))


def account_page(account_id: str) -> str:
    """Get the path of the page of an account."""
    return f"/runs/{account_id}" if account_id.startswith("run_") else f"/accounts/{account_id}"


def marked(text: str) -> Markup:
    """Render the backticks of an API message as code."""
    parts = enumerate(text.split("`"))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in parts
    )


def indented(text: str | None) -> str:
    """Indent a JSON object; an empty one or None is empty."""
    facts = json.loads(text) if text else {}
    return json.dumps(facts, indent=2, ensure_ascii=False) if facts else ""


def severity_label(status: AccountStatus) -> str:
    """Label the state of an account."""
    if status.limit is None:
        return "unreadable"
    if status.quarantine is not None:
        return "quarantined"
    if status.archived:
        return "archived"
    if status.is_blocked:
        return "blocked"
    if status.is_locked:
        return "locked"
    return _half_label(status) if status.severity is Severity.HALF else SEVERITIES[status.severity]


def _half_label(status: AccountStatus) -> str:
    """Label what is half gone: by charges, reservations or an account above, or else by its forecast."""
    if status.used >= HALF:
        return "half used"
    if status.used_including_reserved >= HALF:
        return "half reserved"
    return "limited" if status.used_along_path >= HALF else "soon used up"


def why(decision: Decision, binding: str) -> str:
    """Explain a decision in a few sentences, where there is something to explain; `binding` names its account."""
    if decision.refusal_details is not None:
        return refusal_text(refusal_facts(decision), binding, decision.step_count)
    if decision.outcome is DecisionOutcome.REPORTED and decision.steps_remaining is None:
        return f"These steps were reported after they ran, and took {binding} over its limit."
    if decision.requested_count > decision.step_count:
        return f"These are the steps that fitted, of {decision.requested_count} requested."
    return " ".join([*map(ended_plan_text, ended_plans_of(decision)), *warnings_of(decision)])


def actors_of(decision: Decision) -> tuple[str | None, ...]:
    """List who requested a decision, and who last changed the limit that refused it."""
    refused = decision.refusal_details
    change = None if refused is None else refusal_facts(decision)["limit_change"]
    return decision.actor.id, change and change["actor"]


def width(part: float) -> str:
    """Format a share of a bar that is 100 wide."""
    return f"{min(100.0, max(0.0, 100 * part)):.2f}".rstrip("0").rstrip(".")


_FORMATS: Final = (
    epsilon,
    percent,
    count,
    limit,
    limit_words,
    limit_symbols,
    limit_value,
    limit_delta,
    unbroken,
    facts,
    observed,
    path,
    label,
    moment,
    data_period,
    lasting,
    marked,
    seconds,
    percent_value,
    indented,
    severity_label,
    why,
    width,
    account_page,
)

FILTERS: Final[Mapping[str, Callable[..., object]]] = {
    **{each.__name__: each for each in _FORMATS},
    "cursor": encode_cursor,
    "exact": format_exact,
    "labelled": labelled,
}
"""Jinja filters by name."""
