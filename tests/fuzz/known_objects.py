"""What a fuzz knows of the ledgers that it talks to: ids that it was told, names that it gave."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

ORGANISATIONS: Final = ("hospital", "university")
KEPT: Final = 30
"""Ids of a kind that are remembered; the oldest are forgotten, so that runs that ended do not pile up."""

ACCOUNTS: Final = ("pop", "bud", "run")
SCOPED: Final = {
    "run_id": ("run",),
    "budget_id": ("bud",),
    "population_id": ("pop",),
    "reservation_id": ("res",),
    "key_id": ("key",),
    "account_id": ACCOUNTS,
    "proposal_id": ("prp",),
    "receiver_id": ("rcv",),
    "delivery_id": ("dlv",),
    "experiment_id": ("exp",),
    "verification_id": ("ver",),
}
"""Prefixes of the ids that a path parameter takes."""


@dataclass
class KnownObjects:
    """The ids of each organisation by their prefix, and the paths of its populations and budgets."""

    choice: random.Random
    ids: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    paths: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    named: int = 0

    def learn(self, organisation: str, answer: Any) -> None:  # noqa: ANN401 - JSON is anything
        """Remember the ids in an answer that was a success."""
        if isinstance(answer, list):
            for item in answer:
                self.learn(organisation, item)
        if not isinstance(answer, dict):
            return
        self.learn(organisation, answer.get("items"))
        for name in ("id", "delivery_id", "proposal_id"):
            self._keep(organisation, answer.get(name))
        named = answer.get("path")
        if isinstance(named, str) and str(answer.get("id", "")).startswith(("bud_", "pop_")):
            kind = "budget" if "/" in named else "population"
            known = self.paths[organisation, kind]
            if named not in known:
                known.append(named)
                del known[:-KEPT]

    def some_id(self, organisation: str, *prefixes: str) -> str:
        """An id of one of these kinds: mostly a new one of this organisation, at times another's, at times none."""
        luck = self.choice.random()
        if luck < 0.03:
            return self.choice.choice(("nowhere", "run_", "%00", "..", "é", "x" * 300, "run_01a2'--"))
        if luck < 0.06:
            organisation = next(name for name in ORGANISATIONS if name != organisation)
        known = self.ids[organisation, self.choice.choice(prefixes)]
        if not known:
            return f"{prefixes[0]}_nowhere"
        return self.choice.choice(known[-6:] if luck < 0.8 else known)

    def some_path(self, organisation: str, *kinds: str) -> str:
        """A path of a budget or a population: mostly a new one."""
        known = [path for kind in kinds for path in self.paths[organisation, kind][-5:]]
        return self.choice.choice(known or ["nowhere"])

    def new_name(self) -> str:
        """A name that nobody had, or now and then the last one again."""
        self.named += self.choice.random() < 0.95
        return f"n{self.named}"

    def _keep(self, organisation: str, body: object) -> None:
        if not isinstance(body, str) or "_" not in body:
            return
        known = self.ids[organisation, body.split("_")[0]]
        if body not in known:
            known.append(body)
            del known[:-KEPT]
