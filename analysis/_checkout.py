"""The launchers beside this file run the raydiff of their checkout, whatever else is installed."""

import sys
from pathlib import Path
from typing import NoReturn

sys.path[0] = str(Path(__file__).resolve().parents[1])  # in place of this folder


def main(command: str) -> NoReturn:
    """`raydiff COMMAND`, with the arguments of this process."""
    from raydiff import __main__ as raydiff

    raydiff.main([command, *sys.argv[1:]])
