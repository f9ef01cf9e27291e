"""The fixed sample of mutants: how it is drawn, kept, and found again in code that has changed since."""

import ast
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec

SAMPLE: Final = Path(__file__).with_name("sample.json")
SEED: Final = 20261128

PACKAGES: Final = {
    "app/accounting": 120,
    "app/ledger": 120,
    "app/service/charging": 60,
    "app/service/scheduling": 40,
    "app/service/verification": 40,
    "sdk/src/epsilon_ledger/_run": 40,
    "sdk/src/epsilon_ledger/_wire": 40,
}
"""Number of mutants drawn from each package."""

Verdict = Literal["killed", "survived", "equivalent", "removed"]


@dataclass(frozen=True)
class Mutant:
    """One change of one line, named so that it is found again when other lines have moved.

    Args:
        file: of the change.
        operator: of cosmic-ray.
        line: the line before the change, without its indentation.
        mutated: the line after it.
        column: of the change within the line.
        nth: which of the file's lines with this text, from 0.
        choice: which of the operator's changes at this place, from 0.
        verdict: of the last run that was recorded; None: not tried yet.
        reason: why it is equivalent, or why its code is gone.
    """

    file: str
    operator: str
    line: str
    mutated: str
    column: int
    nth: int
    choice: int
    verdict: Verdict | None = None
    reason: str = ""

    @property
    def place(self) -> "Mutant":
        """Where it is and which change there, without the line after it and what became of it."""
        return replace(self, mutated="", verdict=None, reason="")

    def tried(self, verdict: Verdict | None) -> "Mutant":
        """Record a verdict; what is known to be equivalent stays so until a test kills it."""
        known = verdict is None or (verdict == "survived" and self.verdict == "equivalent")
        return self if known else replace(self, verdict=verdict, reason="")

    def __str__(self) -> str:
        """Show the change on one line."""
        return f"{self.file}: {self.line}  =>  {self.mutated}"


def load() -> list[Mutant]:
    """Read the sample."""
    return [Mutant(**each) for each in json.loads(SAMPLE.read_text())]


def save(mutants: Iterable[Mutant]) -> None:
    """Write the sample, one mutant a line."""
    written = ({name: value for name, value in asdict(each).items() if name != "reason" or value} for each in mutants)
    rows = map(json.dumps, written)
    SAMPLE.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def draw(root: Path) -> list[Mutant]:
    """Draw the sample: places of each package by the seed, and for each place one of its changes."""
    chance = random.Random(SEED)  # noqa: S311 - a sample, not a secret
    drawn = []
    for package, wanted in PACKAGES.items():
        places: dict[tuple[Path, tuple[int, int]], list[Mutant]] = defaultdict(list)
        for path in sorted((root / package).rglob("*.py")):
            left_out = _annotated(path)
            for mutant, spec in _changes(root, str(path.relative_to(root))).items():
                if spec.start_pos not in left_out:
                    places[path, spec.start_pos].append(mutant)
        drawn += [_mutated(root, chance.choice(places[each])) for each in sorted(chance.sample(sorted(places), wanted))]
    return drawn


def find(root: Path, mutant: Mutant) -> MutationSpec | None:
    """Find a mutant in the code as it is now; None: its line is no longer there."""
    return _changes(root, mutant.file).get(mutant.place) if (root / mutant.file).exists() else None


def _mutated(root: Path, mutant: Mutant) -> Mutant:
    spec = _changes(root, mutant.file)[mutant]
    operator: Any = get_operator(spec.operator_name)()
    after = mutate_code(spec.module_path.read_text(), operator, spec.occurrence)
    return replace(mutant, mutated=after.splitlines()[spec.start_pos[0] - 1].strip())


@cache
def _changes(root: Path, file: str) -> dict[Mutant, MutationSpec]:
    """All mutations of a file by their places, in cosmic-ray's order."""
    work = WorkDB(":memory:", WorkDB.Mode.create)
    init([root / file], work, {})
    specs = [spec for item in work.work_items for spec in item.mutations]
    work.close()
    lines = (root / file).read_text().splitlines()
    texts = [line.strip() for line in lines]
    choices: Counter[tuple[str, tuple[int, int]]] = Counter()
    found = {}
    for spec in sorted(specs, key=lambda spec: (spec.operator_name, spec.occurrence)):
        row, column = spec.start_pos
        text, place = texts[row - 1], (spec.operator_name, spec.start_pos)
        nth, column = texts[: row - 1].count(text), column - lines[row - 1].index(text)
        found[Mutant(file, spec.operator_name, text, "", column, nth, choices[place])] = spec
        choices[place] += 1
    return found


def _annotated(path: Path) -> set[tuple[int, int]]:
    """The places within annotations of types, which no test runs."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        kinds = [getattr(node, name, None) for name in ("annotation", "returns")]
        for part in (part for kind in kinds if isinstance(kind, ast.AST) for part in ast.walk(kind)):
            if isinstance(part, ast.BinOp):
                found |= {(part.lineno, column) for column in range(part.col_offset, part.end_col_offset or 0)}
    return found
