"""Version of this installation, read once: the lookup takes longer than a request."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("epsilon-ledger")
