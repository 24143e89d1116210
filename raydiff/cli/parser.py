"""A command line whose errors are ValueErrors, which `raydiff` says in one sentence."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Its errors are ValueErrors."""

    def error(self, message: str) -> NoReturn:
        """Raises ValueError."""
        raise ValueError(message)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; did you mean {close[0]}?" if close else ""
