"""Origins of a run: the runs and outside models that its training starts from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import file_digest
from os import PathLike
from pathlib import Path
from typing import Protocol, Self, TypeAlias

from epsilon_ledger._wire.coercion import items

_EXAMPLE = "[base_run, ModelOrigin.of_file('gpt2.safetensors')]"


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """A run that a training starts from: its id, or to create a run also its path."""

    run: str


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """A model from outside of the ledger that a training starts from.

    Args:
        name: as people know it.
        sha256: of its file, in 64 digits.
    """

    name: str
    sha256: str

    @classmethod
    def of_file(cls, path: str | PathLike[str], name: str | None = None) -> Self:
        """Compute the digest of a model's file.

        Args:
            path: of the file.
            name: of the model; None: the file's.

        Raises:
            OSError: the file cannot be read.
        """
        with Path(path).open("rb") as file:
            return cls(name or Path(path).name, file_digest(file, "sha256").hexdigest())


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


Origin: TypeAlias = RunOrigin | ModelOrigin
"""What a training starts from."""

OriginReference: TypeAlias = Origin | _Identified | Mapping[str, object] | str
"""An origin; or a run: itself, its state, what a checkpoint has of it (`state_dict()`), its id or its path."""


def run_of_checkpoint(state: Mapping[str, object]) -> str:
    """Get the id of the run that a checkpoint was charged to.

    Args:
        state: what `state_dict()` of a run, of a `TrainingCharge` or of Opacus' attached accountant returned.

    Raises:
        ValueError: it is none of these.
    """
    run = state.get("run")
    if not isinstance(run, str) or not run:
        raise ValueError(f"This is not what a run's state_dict() returned: {state!r}.")
    return run


def wire_origins(origins: Sequence[OriginReference] | None) -> list[dict[str, str]] | None:
    """Serialize what a training starts from, or None.

    Raises:
        TypeError: it is not a list of runs, checkpoints' states and outside models.
        ValueError: a mapping in it names no run.
    """
    return None if origins is None else [_wire(each) for each in items("starts_from", origins, _EXAMPLE)]


def _wire(origin: OriginReference) -> dict[str, str]:
    match origin:
        case RunOrigin() | ModelOrigin():
            return asdict(origin)
        case str():
            return {"run": origin}
        case {"name": str(name), "sha256": str(digest)}:
            return {"name": name, "sha256": digest}
        case Mapping():
            return {"run": run_of_checkpoint(origin)}
    run = getattr(origin, "id", None)
    if not isinstance(run, str):
        raise TypeError(f"starts_from holds runs, checkpoints' states and outside models, not {origin!r}.")
    return {"run": run}
