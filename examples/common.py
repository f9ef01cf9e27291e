"""Shared parts of the examples: command-line options and budgets."""

# Scripts that lie beside each other, and no package.

import argparse
import uuid
from pathlib import Path

from epsilon_ledger import LedgerClient, Limit, NeighboringRelation, PlannedEvents


def parser(description: str, folder: str) -> argparse.ArgumentParser:
    """Create a parser with the common options.

    The ledger and the key come from EPSILON_LEDGER_URL and EPSILON_LEDGER_API_KEY.

    Args:
        description: of the example, in a sentence.
        folder: default folder of the results.
    """
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--budget", help="id or path of the budget to charge; by default a new one (an admin's key)")
    made.add_argument("--out", type=Path, default=Path(folder), help="folder for the results (%(default)s)")
    return made


def budget(  # noqa: PLR0913 - the members of a population, by name
    ledger: LedgerClient,
    asked: str | None,
    name: str,
    *,
    privacy_unit: str,
    neighboring_relation: NeighboringRelation,
    size: int,
    limit: Limit,
    planned: PlannedEvents | None = None,
) -> str:
    """Return the requested budget's id or path, or create one under a new population.

    Args:
        ledger: with an admin's key, to create a budget.
        asked: id or path of a budget, or None.
        name: prefix of the population's name.
        privacy_unit: the protected unit.
        neighboring_relation: which data sets are neighbours.
        size: number of privacy units.
        limit: of the population and the budget.
        planned: the plan of both; None: the filter is tuned for the first charged event.
    """
    if asked is not None:
        return asked
    population = ledger.create_population(
        f"{name}-{uuid.uuid4().hex[:8]}",
        privacy_unit=privacy_unit,
        neighboring_relation=neighboring_relation,
        size=size,
        limit=limit,
        planned=planned,
    )
    opened = ledger.create_budget("example", parent=population.path, limit=limit, planned=planned)
    print(f"Opened {opened.path}: epsilon {limit.epsilon:g} at delta {limit.delta:g} for {size} {privacy_unit}s")
    return opened.path
