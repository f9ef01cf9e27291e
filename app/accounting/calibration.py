"""Solving for a parameter of an event."""

from collections.abc import Callable
from decimal import Decimal

from app.accounting.events import MAX_NOISE_MULTIPLIER, DpEvent, noise_multiplier, with_noise_multiplier


def smallest_noise_multiplier(event: DpEvent, fits: Callable[[DpEvent], bool], digits: int = 4) -> float | None:
    """Return the smallest noise multiplier, from the event's own upwards, with which the event fits.

    It is assumed that more noise fits wherever less noise does: true of every event here, since every
    order's divergence falls with the noise. The returned value itself was tried, so it fits in any case.

    Args:
        event: the event; its own noise multiplier is where the search begins.
        fits: whether an event is affordable; called at most about 25 times.
        digits: significant decimal digits of the answer, at least 1.

    Returns:
        The event's own noise multiplier if it fits, else the smallest number with these digits that does,
        else None if not even the largest noise multiplier (1e6) fits.

    Raises:
        UnsupportedEventError: the event has no single noise multiplier.
    """

    def fits_at(index: int) -> bool:
        return fits(with_noise_multiplier(event, _decimal(index, digits)))

    own = noise_multiplier(event)
    if fits(event):
        return own
    last = _index_at_or_below(MAX_NOISE_MULTIPLIER, digits)
    low = _index_at_or_below(own, digits)  # does not fit, or lies just below what does not
    high, stride = low + 1, 1
    while not fits_at(min(high, last)):
        if high >= last:
            return None
        low, stride = high, stride * 8
        high = low + stride
    high = min(high, last)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits_at(middle) else (middle, high)
    return _decimal(high, digits)


# The numbers with four significant digits, say, counted upwards: 1.000 is 0, 1.001 is 1, ..., 10.00 is 9000.


def _decimal(index: int, digits: int) -> float:
    smallest_mantissa = int(10 ** (digits - 1))
    decade, offset = divmod(index, 9 * smallest_mantissa)
    return float(f"{smallest_mantissa + offset}e{decade - digits + 1}")


def _index_at_or_below(value: float, digits: int) -> int:
    smallest_mantissa = int(10 ** (digits - 1))
    number = Decimal(repr(value))
    decade = number.adjusted()
    return (9 * decade - 1) * smallest_mantissa + int(number.scaleb(digits - 1 - decade))
