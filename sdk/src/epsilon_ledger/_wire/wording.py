"""Numbers as people read them."""


def percent(share: float) -> str:
    """Write a share, such as `used`, in percent: as 0 or 100 only if it is exactly that."""
    tenths = round(1_000 * share)
    if 0 < share < 1:
        tenths = min(max(tenths, 1), 999)
    elif share > 1:
        tenths = max(tenths, 1_001)
    return f"{tenths / 10:.1f} %"
