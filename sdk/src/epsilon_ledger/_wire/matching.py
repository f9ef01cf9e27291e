"""Whether a response is about what its request asked for.

A proxy that mixes up connections, or replays what it has stored, would let a trainer release for another run's charge.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from epsilon_ledger._wire.errors import UnexpectedResponseError

_ECHOED: Final = ("name", "role", "attempt", "first_step", "lease_seconds", "steps_executed")
"""Members of a body that the response repeats, if it has them."""

_REFERENCES: Final = ("account", "budget", "parent", "scope")
"""As these, where they are ids and not paths."""

_ACCOUNT_IDS: Final = ("pop_", "bud_", "run_")
_BY_PATH: Final = frozenset({"accounts", "populations", "budgets", "runs"})
_OWNERS: Final = {"runs": "run", "accounts": "account", "receivers": "receiver"}
"""Members that name the object under which the response's one is."""


def echoes(body: Mapping[str, object]) -> Mapping[str, object]:
    """Select the members of a body that the response must repeat."""
    found = {name: body[name] for name in _ECHOED if body.get(name) is not None}
    for name in _REFERENCES:
        reference = body.get(name)
        if isinstance(reference, str) and reference.startswith(_ACCOUNT_IDS):
            found[name] = reference
    return found


def require_match(path: str, echoed: Mapping[str, object], members: object, status: int) -> None:
    """Require that a response is about the object of its request's path, and repeats members of its body.

    Args:
        path: of the request, under the ledger's address.
        echoed: as of `echoes`.
        members: decoded JSON of the response, or of a problem; members that it lacks are not compared.
        status: of HTTP.

    Raises:
        UnexpectedResponseError: it answers another request.
    """
    if not isinstance(members, Mapping):
        return
    for name, asked in (*_of_path(path, members), *echoed.items()):
        said = members.get(name)
        if said is not None and said != asked:
            raise UnexpectedResponseError(
                f"The ledger was asked about {name} {asked!r}, and the answer is about {said!r}: release nothing. "
                "A proxy in between mixes up answers, or replays them.",
                status=status,
            )


def _of_path(path: str, members: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Select what a response must say about the object of a path such as v1/runs/run_1/steps."""
    kind, name, is_new = _parse(path)
    if not name or (kind in _BY_PATH and not name.startswith(_ACCOUNT_IDS)):
        return
    own = members.get("id")
    if isinstance(own, str) and own.partition("_")[0] == name.partition("_")[0] and not is_new:
        yield "id", name
    if kind in _OWNERS:
        yield _OWNERS[kind], name


@lru_cache(maxsize=64)
def _parse(path: str) -> tuple[str, str, bool]:
    """Parse a path: the kind of its object, its name, and whether the response is about a new object."""
    _, kind, name, *action = [*path.partition("?")[0].split("/"), "", ""][:5]
    return kind, unquote(name), kind == "api-keys" and action[0] == "rotate"
