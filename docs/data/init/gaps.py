"""A table with gaps, as strangers have them: Adult's training rows with a tenth of all cells but the labels empty.

RAYDIFF_DATA=path/to/data python docs/data/init/gaps.py FILE.csv
"""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd

table = pd.read_csv(Path(os.environ["RAYDIFF_DATA"]) / "adult" / "train.csv")
empty = np.random.default_rng(0).random(table.shape) < 0.1
empty[:, table.columns.get_loc("income")] = False
table.mask(empty).to_csv(sys.argv[1], index=False)
