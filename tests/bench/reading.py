"""Numbers as tables of measurements show them."""


def figure(shown: str) -> float:
    """The number that a cell begins with: `1,527 (1,400-1,600)` is 1527. A slow machine has larger ones than a fast."""
    return float(shown.split(maxsplit=1)[0].replace(",", ""))
