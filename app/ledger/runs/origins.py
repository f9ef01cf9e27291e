"""The origins of a run: the runs and outside models that its training starts from, as its trainer declares them."""

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from app.ledger.audit import canonical

MAX_ORIGINS: Final = 16
"""Maximum number of origins of one run."""

MAX_MODEL_NAME: Final = 200
"""Maximum length of an outside model's name."""


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """A run of this ledger: its id, or in a request also its path."""

    run: str


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """A model from outside, by its name and the 64 lower-case digits of its sha256."""

    name: str
    sha256: str


Origins: TypeAlias = tuple[RunOrigin | ModelOrigin, ...]
"""What a run starts from; empty: from nothing that was trained before."""


def origins_text(origins: Origins) -> str:
    """Serialize what a run starts from as canonical JSON."""
    return canonical([asdict(each) for each in origins])


@lru_cache(maxsize=1024)
def read_origins(text: str) -> Origins:
    """Parse what `origins_text` wrote."""
    return tuple(RunOrigin(**each) if "run" in each else ModelOrigin(**each) for each in json.loads(text))


def origin_runs(origins: Origins | None) -> list[str]:
    """List the ids of the runs among some origins; None: nothing was declared."""
    return [each.run for each in origins or () if isinstance(each, RunOrigin)]


def origin_models(origins: Origins | None) -> list[ModelOrigin]:
    """List the outside models among some origins; None: nothing was declared."""
    return [each for each in origins or () if isinstance(each, ModelOrigin)]
