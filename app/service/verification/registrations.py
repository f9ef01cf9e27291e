"""Runs that have not ended, by the accounts that they charge, as the audit log has registered them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from app.ledger.filter.filters import FilterWeights
from app.ledger.governance.registered_steps import MOST_RUNS

RunsInParts = tuple[tuple[str, tuple[str, ...]], ...]
"""Runs under an account in order of registration, each with the children of the account that it charges."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The last time that an account's filter was, or may have been, tuned to registered runs.

    Args:
        runs: that had not ended.
        weights: as recorded; None: its limit was changed, and it was tuned if nothing was spent or reserved.
        population: the first account of the path of the run that was registered.
        version: of that account after the registration; earlier decisions have at most this one.
    """

    runs: RunsInParts
    weights: FilterWeights | None = None
    population: str = ""
    version: int = -1


@dataclass
class Registrations:
    """The registered runs of an organisation.

    Args:
        above: accounts that an account is under, or that a run charges directly.
        open: runs that have not ended, with the children of the account that they charge, by account.
    """

    above: dict[str, tuple[str, ...]] = field(default_factory=dict)
    open: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)

    def add(self, account_id: str, facts: Mapping[str, Any]) -> None:
        """Add an account by the payload of its creation; a run is under all accounts that it charges."""
        parent = facts["parent"]
        self.above[account_id] = tuple(facts.get("budgets", () if parent is None else (parent,)))
        if facts["kind"] == "run":
            for above, children in self._ways(account_id).items():
                self.open.setdefault(above, {})[account_id] = tuple(sorted(children))

    def end(self, run_id: str) -> None:
        """Remove a run that has ended."""
        for above in self._ways(run_id):
            self.open.get(above, {}).pop(run_id, None)

    def under(self, account_id: str) -> RunsInParts:
        """List the first runs under an account that have not ended."""
        return tuple(islice(self.open.get(account_id, {}).items(), MOST_RUNS))

    def tuned_by(self, run_id: str, account_id: str, weights: FilterWeights, version: int) -> Tuning:
        """Get the tuning of an account that the registration of a run has recorded."""
        roots = [above for above in self._ways(run_id) if not self.above.get(above)]
        return Tuning(self.under(account_id), weights, min(roots), version)

    def _ways(self, account_id: str) -> dict[str, set[str]]:
        """Find an account and all above it, each with its children on the way."""
        found: dict[str, set[str]] = {account_id: set()}
        for child, parent in self._links(account_id, set()):
            found.setdefault(parent, set()).add(child)
        return found

    def _links(self, account_id: str, seen: set[str]) -> Iterator[tuple[str, str]]:
        if account_id in seen:  # a forged log may have a cycle
            return
        seen.add(account_id)
        for parent in self.above.get(account_id, ()):
            yield account_id, parent
            yield from self._links(parent, seen)
