"""`raydiff account`, from a checkout."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # in place of this folder

from raydiff.__main__ import main

if __name__ == "__main__":  # A process that this one spawns imports it again.
    main(["account", *sys.argv[1:]])
