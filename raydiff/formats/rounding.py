"""Bounds as text, rounded away from what they bound."""

import decimal
import math


def up(epsilon: float, digits: int = 2) -> str:
    """Return an upper bound: `9.71`, `0.057`, `0`, `inf`, with `digits` decimals, below 0.1 significant digits."""
    return _shown(epsilon, digits, decimal.ROUND_CEILING)


def down(epsilon: float, digits: int = 2) -> str:
    """Return a lower bound in the same form."""
    return _shown(epsilon, digits, decimal.ROUND_FLOOR)


def _shown(value: float, digits: int, way: str) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = decimal.Decimal(repr(float(value)))  # the shortest text of this float, so that 0.1 stays 0.10
    places = digits if abs(value) >= 0.1 else digits - 1 - exact.adjusted()
    rounded = exact.quantize(decimal.Decimal((0, (1,), -places)), way, decimal.Context(prec=700))
    return f"{rounded:f}" if abs(value) >= 0.1 else f"{float(rounded):.{digits}g}"
