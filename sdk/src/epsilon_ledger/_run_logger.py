"""Logging of a ledger run to an experiment tracker, and the privacy statement at its end."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from epsilon_ledger._client import LedgerClient
from epsilon_ledger._net.config import validate_url
from epsilon_ledger._run.blocking_run import require_blocking_run
from epsilon_ledger._run.provenance import MAX_LINKS
from epsilon_ledger._run.run import Run
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.errors import LedgerError
from epsilon_ledger._wire.events import EventCount
from epsilon_ledger._wire.metadata import Link
from epsilon_ledger._wire.models import NeighboringRelation, RunState
from epsilon_ledger._wire.problems import BudgetExceededError

STATEMENT: Final = "epsilon_ledger/statement.json"
"""Path of the statement among the files of the tracker's run."""

_MAX_DECISIONS: Final = 500


class RunLogger(ABC):
    """Logger of a ledger run to the tracker's run that is active on entry of the `with` block.

    If the ledger's run ends inside the block, the statement includes its end.

    Args:
        run: to log.
        client: adds its decisions and the ledger's warnings to the statement, and the tracker's run to the metadata of
            the ledger's; optional.
        every: interval of logged steps, at least 1.
        url: the ledger's address, for a tag; by default EPSILON_LEDGER_URL.

    Raises:
        ValueError: `every` is below 1.
        TypeError: the run is an AsyncRun or no run, or `every` is no whole number.
        ConfigurationError: the address is invalid or has credentials.
    """

    _label: ClassVar[str]
    """Label of the ledger's run with the id of the tracker's."""
    _failures: ClassVar[tuple[type[Exception], ...]]
    """Errors of the tracker."""

    def __init__(self, run: Run, *, client: LedgerClient | None = None, every: int = 1, url: str | None = None) -> None:
        whole("every", every)
        address = url or os.environ.get("EPSILON_LEDGER_URL")
        self._run = require_blocking_run(run)
        self._client = client
        self._every = every
        self._url = f"{validate_url(address).rstrip('/')}/runs/{run.id}" if address else None
        self._logged = -1

    def __enter__(self) -> Self:
        """Find the tracker's active run, and let both runs name each other.

        Raises:
            ValueError: the tracker has no active run.
            LedgerError: the ledger's run could not be labelled.
        """
        tracked, link = self._open()
        state = self._run.state
        self._describe(
            {
                "run": state.id,
                "name": state.name,
                "budget": state.budget_path,
                "population": state.population,
                **({"url": self._url} if self._url else {}),
            }
        )
        self._label_run(tracked, link)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Log the last step and the statement; an exception of the training takes precedence."""
        failures: tuple[type[Exception], ...] = (LedgerError, *self._failures)
        try:
            self._conclude(error)
        except failures as second:
            if error is None:
                raise
            error.add_note(f"The statement of {self._run.id} could not be logged: {second}")

    def log(self) -> None:
        """Log the epsilon and the used share after a step that is due.

        Raises:
            ValueError: outside the `with` block.
        """
        step = self._run.next_step
        if step // self._every > self._logged // self._every:
            self._log(step)

    def statement(self, refusal: BudgetExceededError | None = None) -> dict[str, Any]:
        """Build the run's current privacy statement.

        Args:
            refusal: that ended the run, if any.

        Returns:
            A JSON object. An infinite epsilon is null; `decisions` and `warnings` are null without a client or with too
            many decisions.

        Raises:
            LedgerError: no response arrived.
        """
        state = self._run.refresh()
        decisions, events = self._read_decisions(state)
        return {
            "claim": (
                f"What run {state.id} was charged has epsilon {state.epsilon:.6g} at delta {state.delta:g}, if its "
                f"steps were fixed in advance. Whatever was chosen from any outputs, {_limit_text(state)} bounds what "
                f"is added to all other releases about the same people. For the model alone, which may repeat what "
                f"other runs released, the limit of {state.population} holds. It protects one {state.privacy_unit} "
                f"under {state.neighboring_relation}, if the trainer did what its events say."
            ),
            "run": state.id,
            "name": state.name,
            "status": state.status,
            "attempt": state.attempt,
            "budget": state.budget_path,
            "population": state.population,
            "privacy_unit": state.privacy_unit,
            "neighboring_relation": state.neighboring_relation,
            "plan": None if state.plan is None else asdict(state.plan),
            "delta": state.delta,
            "epsilon": _finite(state.epsilon),
            "limit": None if state.limit is None else asdict(state.limit),
            "used": state.used,
            "steps": state.next_step,
            "steps_remaining": state.steps_remaining,
            "binding_account": state.binding_account_path,
            "event": state.event,
            "events": events,
            "decisions": decisions,
            "warnings": self._warnings(state, events),
            "refusal": None if refusal is None else {"said": str(refusal), **refusal.problem.members},
            "ledger": self._url,
            "client_version": version("epsilon-ledger-client"),
            "read_at": state.updated_at.isoformat(),
        }

    @abstractmethod
    def _open(self) -> tuple[str, Link | None]:
        """Find the tracker's active run, and return its id and its link for everybody, if any."""

    @abstractmethod
    def _is_open(self) -> bool:
        """Return whether the block was entered."""

    @abstractmethod
    def _describe(self, facts: Mapping[str, str]) -> None:
        """Keep facts that do not change over the steps."""

    @abstractmethod
    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        """Log the numbers of a step."""

    @abstractmethod
    def _keep(self, statement: Mapping[str, Any]) -> None:
        """Keep the statement as a file."""

    def _label_run(self, tracked: str, link: Link | None) -> None:
        """Name the tracker's run in the metadata of the ledger's, unless one is named."""
        if self._client is None or self._label in self._run.state.labels:
            return
        labels, links = {self._label: tracked}, self._run.state.links
        if link is None or len(links) >= MAX_LINKS:
            self._client.update_run(self._run.id, labels=labels)
        else:
            self._client.update_run(self._run.id, labels=labels, links=[*links, link])

    def _conclude(self, error: BaseException | None) -> None:
        if self._run.next_step != self._logged:
            self._log(self._run.next_step)
        refusal = error if isinstance(error, BudgetExceededError) else self._run.refusal
        statement = self.statement(refusal)
        self._keep(statement)
        self._describe({"status": statement["status"], "refused": str(refusal is not None).lower()})

    def _log(self, step: int) -> None:
        if not self._is_open():
            raise ValueError("log() works inside `with EpsilonLogger(run):`.")
        state = self._run.state
        facts = {
            "epsilon": state.epsilon,
            "used": state.used,
            "steps_remaining": state.steps_remaining,
        }
        self._write(
            {name: float(fact) for name, fact in facts.items() if fact is not None and math.isfinite(fact)}, step
        )
        self._logged = step

    def _read_decisions(self, state: RunState) -> tuple[int | None, list[EventCount] | None]:
        """Count the decisions, and the admitted events if one page has them all."""
        if self._client is None:
            return None, None
        page = self._client.get_run_history(state.id, max_points=_MAX_DECISIONS)
        counts: list[EventCount] = []
        for point in page.points:
            for item in point.events if point.decision != "refused" else ():
                known = next((entry for entry in counts if entry["event"] == item["event"]), None)
                if known is None:
                    counts.append(EventCount(event=item["event"], count=item["count"]))
                else:
                    known["count"] += item["count"]
        whole = len(page.points) == page.decisions and not any(point.events_truncated for point in page.points)
        seen = sum(item["count"] for item in counts)
        return page.decisions, counts if whole and (seen, state.attempt) == (state.next_step, 1) else None

    def _warnings(self, state: RunState, events: Sequence[EventCount] | None) -> list[str] | None:
        """Get the ledger's warnings about these events as a plan."""
        if self._client is None or events is None:
            return None
        if not events:
            return []
        relation: NeighboringRelation = state.neighboring_relation  # type: ignore[assignment] # the ledger's words
        return list(self._client.compute_epsilon(events, delta=state.delta, neighboring_relation=relation).warnings)


def _limit_text(state: RunState) -> str:
    """Name the limit that governs a run: its own, or that of the budget above."""
    if state.limit is None:
        return f"the limit of {state.budget_path}"
    return f"its limit, epsilon {state.limit.epsilon:g} at delta {state.limit.delta:g},"


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
