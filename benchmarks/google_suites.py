"""Google's own tests of its accountants, run on the service: `python -m benchmarks.google_suites [CHECKOUT]`.

The tests are those of the installed dp_accounting, or of a checkout of google/differential-privacy; nothing is fetched.
Its two accountants are replaced by ones that ask a live service through the client. Each test passes, or its line in
EXPLAINED says why not; the process ends with 1 if a test fails without a line, or a line is not needed. Curves at the
orders of a test, which the API does not have, are computed from the events that the client would send.
"""

import argparse
import importlib
import re
import sys
import tempfile
import unittest
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.accounting.curves import HIGHEST, PURE, Floats
from app.accounting.events import NeighboringRelation, event_from_dict
from app.accounting.rdp import curve_over
from benchmarks.google_suites_explained import EXPLAINED, LATER
from benchmarks.servers import ledger
from epsilon_ledger import EventCount, LedgerClient, LedgerError
from epsilon_ledger import NeighboringRelation as Relation

SUITES = {
    "pld": ("dp_accounting.pld.pld_privacy_accountant", "PLDAccountant"),
    "rdp": ("dp_accounting.rdp.rdp_privacy_accountant", "RdpAccountant"),
}
DELTAS = (1e-30, 0.499999)
"""Deltas that the service computes epsilons for."""

WORDS: dict[NeighboringRelation, Relation] = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add_or_remove_one",
    NeighboringRelation.REPLACE_ONE: "replace_one",
    NeighboringRelation.REPLACE_SPECIAL: "replace_special",
}

LARGEST = 1e4
"""Largest epsilon that the service computes a delta for."""

NEAREST = 1e-7
"""Distance from 1 of the lowest order that a curve is computed at."""


def main() -> None:
    """Run both suites, and print what differs from EXPLAINED."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", nargs="?", type=Path, help="of google/differential-privacy")
    checkout = parser.parse_args().checkout
    if checkout is not None:
        sys.path.insert(0, str(checkout / "python" / "dp_accounting"))
    with (
        tempfile.TemporaryDirectory() as folder,
        ledger(f"sqlite:///{Path(folder) / 'l.db'}") as server,
        LedgerClient(
            f"http://127.0.0.1:{server.port}", server.client.headers["Authorization"].removeprefix("Bearer ")
        ) as client,
    ):
        lines = {name: EXPLAINED[name] | (LATER[name] if checkout else {}) for name in SUITES}
        good = [run(name, client, lines[name]) for name in SUITES]
    sys.exit(0 if all(good) else 1)


def run(name: str, client: LedgerClient, lines: Mapping[str, str]) -> bool:
    """Run one suite; return whether each failure has a line, and each line a failure."""
    module_name, accountant = SUITES[name]
    module, tests = importlib.import_module(module_name), importlib.import_module(f"{module_name}_test")
    setattr(module, accountant, accountant_class(name, getattr(module, accountant), client))
    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
    result = unittest.TestResult()
    suite.run(result)
    failed = {_short(test): text.strip().splitlines()[-1] for test, text in (*result.failures, *result.errors)}
    explained = {test: line for test in failed for line in lines if re.fullmatch(line, test)}
    print(f"{name}: {result.testsRun - len(failed)} of {result.testsRun} right, {len(failed)} otherwise")
    for test, text in failed.items():
        print(f"  {test}: {lines.get(explained.get(test, ''), f'NOT EXPLAINED: {text}')}")
    unneeded = lines.keys() - explained.values()
    for line in unneeded:
        print(f"  NOT NEEDED: {line}")
    return len(explained) == len(failed) and not unneeded


def _short(test: unittest.TestCase) -> str:
    """Get the name of a test without its parameters."""
    return str(test._testMethodName)  # noqa: SLF001 - it may hold blanks and points, which the id holds besides


class Readings:
    """What the service says of events.

    Args:
        accountant: of the planner, whose readings are taken.
        client: of the service.
        relation: of neighbours.
    """

    def __init__(self, accountant: str, client: LedgerClient, relation: NeighboringRelation) -> None:
        self.accountant, self.client, self.relation = accountant, client, relation
        self.events: list[EventCount] = []

    def epsilon(self, events: Sequence[EventCount], delta: float) -> float:
        """Compute epsilon, as the accountant or else as the answer has it."""
        delta = min(max(delta, DELTAS[0]), DELTAS[1])
        found = self.client.compute_epsilon(events, delta=delta, neighboring_relation=WORDS[self.relation])
        readings = {each.name: each.epsilon for each in found.comparisons}
        return float(readings.get(self.accountant, found.epsilon))

    def delta(self, epsilon: float) -> float:
        """Compute delta of all events, likewise."""
        relation = WORDS[self.relation]
        found = self.client.compute_delta(self.events, epsilon=min(epsilon, LARGEST), neighboring_relation=relation)
        readings = {each.name: each.delta for each in found.comparisons}
        return float(readings.get(self.accountant, found.delta))

    def curve(self, orders: Floats) -> Floats:
        """Compute the curve of all events at any orders, in nats."""
        near = np.clip(orders, 1 + NEAREST, None)
        unique, places = np.unique(np.where(near > HIGHEST, PURE, near), return_inverse=True)
        total = np.zeros(unique.size)
        for each in self.events:
            curve = curve_over(event_from_dict(each["event"]), unique, self.relation)
            total += curve.times(each["count"]).nats()
        found: Floats = total[places]
        return found


def accountant_class(name: str, google: type[Any], client: LedgerClient) -> type:
    """Make an accountant with the interface of one of Google's whose readings are the service's.

    Args:
        name: of the suite, and of an accountant of the planner.
        google: the class that it replaces.
        client: of the service.
    """
    theirs = importlib.import_module("dp_accounting.privacy_accountant")
    translate = importlib.import_module("epsilon_ledger.dp_accounting").from_dp_accounting

    class Accountant(theirs.PrivacyAccountant):  # type: ignore[misc, name-defined]  # dp_accounting has no types
        def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 - as Google's
            as_google = google(*given, **named)
            super().__init__(as_google.neighboring_relation)
            self._orders: Floats = np.array(getattr(as_google, "_orders", []))
            relation = NeighboringRelation[self.neighboring_relation.name]
            self._readings = Readings(name, client, relation)

        def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:  # noqa: ANN401, FBT001
            if do_compose and count < 1:
                raise ValueError("A count is at least 1.")
            try:
                asked = EventCount(event=translate(event), count=max(count, 1))
                self._readings.epsilon([asked], 0.5)
            except (LedgerError, ValueError) as refusal:
                return self.CompositionErrorDetails(_refused_part(event, translate), str(refusal))
            if do_compose:
                self._readings.events.append(asked)
            return None

        def get_epsilon(self, target_delta: float) -> float:
            return self._readings.epsilon(self._readings.events, target_delta) if self._readings.events else 0.0

        def get_delta(self, target_epsilon: float) -> float:
            return self._readings.delta(target_epsilon) if self._readings.events else 0.0

        @property
        def _rdp(self) -> Floats:
            return self._readings.curve(self._orders)

    return Accountant


def _refused_part(event: Any, translate: Callable[[Any], object]) -> Any:  # noqa: ANN401 - dp_accounting has no types
    """Find the part of an event that has no translation; the event itself if each has one."""
    for part in getattr(event, "events", None) or ([event.event] if hasattr(event, "event") else []):
        try:
            translate(part)
        except (LedgerError, ValueError):
            return _refused_part(part, translate)
    return event


if __name__ == "__main__":
    main()
