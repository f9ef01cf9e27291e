"""The public size of the data, where the number of records is private.

Frameworks derive three numbers from the number of records: the sampling probability, the steps of an epoch, and the
expected batch size by which each noisy sum is divided. Under add_or_remove_one a neighbour has another number of
records, so that all three may differ, and the divisor shows in every released gradient. DP-SGD takes them as fixed.

Source: Abadi et al. 2016 (arXiv 1607.00133), algorithm 1 with a fixed lot size.
"""

from typing import Final

from epsilon_ledger._run.run import Run
from epsilon_ledger._run.trials import Trial

_MOST_APART: Final = 2
"""Factor between a declared size and the number of records, from which the one no longer describes the other."""


def choose_public_size(run: Run | Trial, records: int, given: int | None, error: type[Exception]) -> int | None:
    """Find the size from which a training's numbers are derived; None: from the number of records, which is public.

    Args:
        run: to charge; its population may declare a size.
        records: number of records of the training.
        given: by the user, or None.
        error: to raise.

    Raises:
        Exception: the number of records is private, and no public one is known.
    """
    if given is not None or run.state.neighboring_relation != "add_or_remove_one":
        return given
    size = run.state.population_size
    if size is None:
        raise error(
            "The population is under add_or_remove_one, so the number of records is private. The sampling probability, "
            "the steps of an epoch and the divisor of each noisy sum would be derived from it, and would release it. "
            "Declare the population's size, or give public_size=..., from which they are derived then: the number of "
            "records only if that is public."
        )
    if not size <= records * _MOST_APART <= size * _MOST_APART**2:
        raise error(
            f"The population declares {size} units, but this dataset has {records} records: batches would have "
            f"{records / size:.3g} times the wanted size. Give public_size=..., the public number of records in this "
            f"training's part of the data."
        )
    return size
