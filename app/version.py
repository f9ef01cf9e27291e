"""The version of this installation, read once: to look it up among what is installed takes longer than a request."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("epsilon-ledger")
