"""Lookup of populations, budgets and runs by id, or by path.

Neither can be mistaken for the other: the ledger refuses names that begin as ids do, and paths of budgets and runs have
a slash, which no id has.
"""

from collections.abc import Sequence
from datetime import UTC
from http import HTTPStatus
from typing import Final, TypeVar

from epsilon_ledger._wire.errors import AmbiguousPathError, UnexpectedResponseError
from epsilon_ledger._wire.models import Budget, Population, RunState
from epsilon_ledger._wire.problem_errors import NotFoundError
from epsilon_ledger._wire.problems import Problem
from epsilon_ledger._wire.requests import RequestFlow, get, path
from epsilon_ledger._wire.responses import Page

T = TypeVar("T")
A = TypeVar("A", Population, Budget, RunState)

_ID_PREFIXES: Final = ("pop_", "bud_", "run_")
_MAX_NAMED: Final = 10
"""Maximum number of runs that a message names."""


def find_population(reference: str) -> RequestFlow[Population]:
    """Get a population by its id or name."""
    if _text("population", reference).startswith(_ID_PREFIXES):
        return (yield get(path("populations", reference))).read(Population)
    found = yield from _at_path("v1/populations", reference, Population)
    return _first(found.items, "population", reference)


def find_budget(reference: str) -> RequestFlow[Budget]:
    """Get a budget by its id or path."""
    if "/" not in _text("budget", reference):
        return (yield get(path("budgets", reference))).read(Budget)
    found = yield from _at_path("v1/budgets", reference, Budget)
    return _first(found.items, "budget", reference)


def find_run(reference: str) -> RequestFlow[RunState]:
    """Get a run by its id, or by its path if no other run has the same."""
    if "/" not in _text("run", reference):
        return (yield get(path("runs", reference))).read(RunState)
    found = yield from _at_path("v1/runs", reference, RunState)
    if len(found.items) > 1:
        raise _ambiguous(reference, found.items, more=found.next_cursor is not None)
    return _first(found.items, "run", reference)


def find_run_id(reference: str) -> RequestFlow[str]:
    """Find the id of a run; an id needs no request."""
    return reference if "/" not in _text("run", reference) else (yield from find_run(reference)).id


def find_budget_id(reference: str) -> RequestFlow[str]:
    """Find the id of a budget; an id needs no request."""
    return reference if "/" not in _text("budget", reference) else (yield from find_budget(reference)).id


def find_population_id(reference: str) -> RequestFlow[str]:
    """Find the id of a population; an id needs no request."""
    is_id = _text("population", reference).startswith(_ID_PREFIXES)
    return reference if is_id else (yield from find_population(reference)).id


def find_account_id(reference: str) -> RequestFlow[str]:
    """Find the id of a population, budget or run; an id needs no request."""
    if _text("account", reference).startswith(_ID_PREFIXES):
        return reference
    if "/" not in reference:
        return (yield from find_population(reference)).id
    budgets = yield from _at_path("v1/budgets", reference, Budget)
    return budgets.items[0].id if budgets.items else (yield from find_run(reference)).id


def _at_path(kind: str, reference: str, shape: type[A]) -> RequestFlow[Page[A]]:
    """Get what is at a path; archived accounts, which lists hide, only if there is nothing else."""
    found = (yield get(kind, {"path": reference})).read_page(shape)
    if not found.items:
        found = (yield get(kind, {"path": reference, "archived": True})).read_page(shape)
    for each in found.items:
        if each.path not in {None, reference}:
            raise UnexpectedResponseError(
                f"The ledger was asked for what is at {reference!r}, and answers about {each.path!r}: release nothing.",
                status=HTTPStatus.OK,
            )
    return found


def _text(name: str, reference: str) -> str:
    """Require a reference to be a text that is not empty.

    Raises:
        TypeError: it has another type.
        ValueError: it is empty.
    """
    if not isinstance(reference, str):
        raise TypeError(f"{name} must be an id or a path, not {reference!r}.")
    if not reference:
        raise ValueError(f"{name} must be an id or a path, and is empty.")
    return reference


def _first(found: Sequence[T], kind: str, reference: str) -> T:
    """Return what was found.

    Raises:
        NotFoundError: nothing was.
    """
    if found:
        return found[0]
    example = "mimic" if kind == "population" else "mimic/icu-team" if kind == "budget" else "mimic/icu-team/model"
    detail = f"There is no {kind} at the path {reference!r} in your organisation; a path looks like {example}."
    raise NotFoundError(Problem(HTTPStatus.NOT_FOUND, "not_found", "Not Found", detail, {}))


def _ambiguous(reference: str, runs: Sequence[RunState], *, more: bool) -> AmbiguousPathError:
    named = [
        f"{run.id} ({run.status}, created {run.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC)"
        for run in runs[:_MAX_NAMED]
    ]
    others = "" if not more and len(runs) <= _MAX_NAMED else ", and others"
    return AmbiguousPathError(
        f"{len(runs)}{'+' * more} runs have the path {reference!r}: {', '.join(named)}{others}. Give the id of one, or "
        f"iterate over list_runs(path={reference!r}).",
        path=reference,
        ids=tuple(run.id for run in runs),
    )
