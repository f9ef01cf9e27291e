"""The functions of scipy that the formulas use.

scipy is loaded at the first use of one. That takes 0.15 s, and neither a start nor most commands need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scipy.optimize import brentq
    from scipy.special import betainc, betaincc, digamma, erfcx, gammainc, gammaln, log_ndtr, ndtr, roots_legendre

__all__ = [
    "betainc",
    "betaincc",
    "brentq",
    "digamma",
    "erfcx",
    "gammainc",
    "gammaln",
    "log_ndtr",
    "ndtr",
    "roots_legendre",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any function of scipy
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module("scipy.optimize" if name == "brentq" else "scipy.special"), name)
    globals()[name] = found  # found without this function from now on
    return found
