"""The Rényi divergence of each event type, one formula each; and its curve over the versioned grid."""

from functools import lru_cache, singledispatch

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import RdpCurve
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, Gaussian, NeighboringRelation, PoissonSampled, event_to_dict
from app.accounting.orders import GRID_VERSION
from app.accounting.orders import orders as orders_of_grid
from app.accounting.sampled_gaussian import sampled_gaussian_rdp


@singledispatch
def rdp(event: DpEvent, orders: NDArray[np.float64], relation: NeighboringRelation) -> NDArray[np.float64]:
    """Return the Rényi divergence between the outputs on two neighbouring data sets.

    Args:
        event: what the mechanism did.
        orders: (n_orders,) Rényi orders above 1.
        relation: which data sets are neighbours.

    Returns:
        (n_orders,) nats, an upper bound with relative error at most 1e-10, positive, possibly infinite.

    Raises:
        UnsupportedEventError: no proven formula here covers this event under this relation.
    """
    raise UnsupportedEventError(
        f"There is no formula for {_type_name(event)} under {relation} over {orders.size} orders."
    )


@lru_cache(maxsize=4096)
def event_curve(event: DpEvent, relation: NeighboringRelation, grid_version: int = GRID_VERSION) -> RdpCurve:
    """Return what one repetition of an event costs; the latest 4096 curves are kept.

    Args:
        event: what the mechanism did.
        relation: which data sets are neighbours.
        grid_version: version of the grid of orders.

    Returns:
        The curve over that grid, rounded up.

    Raises:
        UnsupportedEventError: no proven formula here covers this event under this relation.
        UnknownGridVersionError: there is no such grid.
    """
    return RdpCurve.from_nats(rdp(event, orders_of_grid(grid_version), relation))


@singledispatch
def poisson_sampled_rdp(
    event: DpEvent, sampling_probability: float, orders: NDArray[np.float64], relation: NeighboringRelation
) -> NDArray[np.float64]:
    """Return the Rényi divergence of an event on a Poisson sample.

    Args:
        event: what happened to the sample.
        sampling_probability: in (0, 1).
        orders: (n_orders,) Rényi orders above 1.
        relation: which data sets are neighbours.

    Returns:
        (n_orders,) nats, as for `rdp`.

    Raises:
        UnsupportedEventError: no proven formula here covers this event under this relation.
    """
    raise UnsupportedEventError(
        f"There is no formula for Poisson sampling of {_type_name(event)} with probability "
        f"{sampling_probability:g} under {relation} over {orders.size} orders; "
        "a poisson_sampled event may hold a gaussian event."
    )


@rdp.register
def _(event: Gaussian, orders: NDArray[np.float64], relation: NeighboringRelation) -> NDArray[np.float64]:
    # Mironov 2017 (arXiv 1702.07476), Proposition 7: a / (2 z^2) where neighbours' sums differ by one clipping
    # norm. Replacing a record removes one clipped vector and adds another: up to two norms, four times the cost.
    squared_sensitivity = 4 if relation is NeighboringRelation.REPLACE_ONE else 1
    return squared_sensitivity * orders / (2 * event.noise_multiplier**2)


@rdp.register
def _(event: PoissonSampled, orders: NDArray[np.float64], relation: NeighboringRelation) -> NDArray[np.float64]:
    if event.sampling_probability == 1:
        return rdp(event.event, orders, relation)
    return poisson_sampled_rdp(event.event, event.sampling_probability, orders, relation)


@poisson_sampled_rdp.register
def _(
    event: Gaussian, sampling_probability: float, orders: NDArray[np.float64], relation: NeighboringRelation
) -> NDArray[np.float64]:
    if relation is NeighboringRelation.REPLACE_ONE:
        raise UnsupportedEventError(
            "Poisson sampling is not supported under replace_one: its amplification is proven for adding or "
            "removing one record (Mironov, Talwar, Zhang 2019). Declare add_or_remove_one or replace_special if "
            "that is what protection means for this data, or send the gaussian event without sampling."
        )
    return sampled_gaussian_rdp(sampling_probability, event.noise_multiplier, orders)


def _type_name(event: DpEvent) -> object:
    return event_to_dict(event)["type"]
