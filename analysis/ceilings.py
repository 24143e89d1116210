"""`raydiff ceilings`, from a checkout."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # in place of this folder

from raydiff.__main__ import main

main(["ceilings", *sys.argv[1:]])
