"""What the examples share: where the ledger is, whose budget they charge, and where their results go."""

# Scripts that lie beside each other, and no package.

import argparse
import uuid
from collections.abc import Sequence
from pathlib import Path

from epsilon_ledger import EventCount, LedgerClient, Limit, NeighboringRelation, PrivacyFilter


def parser(description: str, folder: str) -> argparse.ArgumentParser:
    """The options that every example has.

    Args:
        description: what the example does, in a sentence.
        folder: where its results are written unless somebody says otherwise.

    Returns:
        The parser; the ledger and the key come from EPSILON_LEDGER_URL and EPSILON_LEDGER_API_KEY.
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
    privacy_filter: PrivacyFilter | None = None,
    planned: Sequence[EventCount] | None = None,
) -> str:
    """Find the budget to charge: the one that was asked for, or a new one below a new population.

    Args:
        ledger: with an admin's key, if a budget is to be opened.
        asked: id or path of a budget, or None.
        name: what the population's name begins with.
        privacy_unit: who is protected.
        neighboring_relation: which two data sets are neighbours.
        size: number of privacy units.
        limit: of the population and the budget.
        privacy_filter: how the limit is enforced; the ledger's default otherwise.
        planned: what the filter is tuned for; by default the first event that is charged.

    Returns:
        Id or path of the budget.
    """
    if asked is not None:
        return asked
    population = ledger.create_population(
        f"{name}-{uuid.uuid4().hex[:8]}",
        privacy_unit=privacy_unit,
        neighboring_relation=neighboring_relation,
        size=size,
        limit=limit,
        privacy_filter=privacy_filter,
        planned=planned,
    )
    opened = ledger.create_budget(
        "example", parent=population.path, limit=limit, privacy_filter=privacy_filter, planned=planned
    )
    print(f"Opened {opened.path}: epsilon {limit.epsilon:g} at delta {limit.delta:g} for {size} {privacy_unit}s")
    return opened.path
