"""`raydiff report`, from a checkout."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # in place of this folder

if __name__ == "__main__":  # A process that this one spawns imports it again.
    from raydiff.__main__ import main

    main(["report", *sys.argv[1:]])
