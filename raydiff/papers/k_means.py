"""K-means, the same groups whatever the number of threads."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def k_means(x: np.ndarray[Any, Any], count: int, seed: int) -> Tensor:
    """(N,) int64: the group 0 .. V - 1 of each row of x (N, dim), V at most `count`: equal rows may give fewer."""
    from sklearn.cluster import KMeans  # a second to import: only where it is used
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # Sums over several threads have no fixed order.
        labels = KMeans(count, n_init=4, random_state=seed).fit(x).labels_
    _, groups = torch.from_numpy(labels).long().unique(return_inverse=True)
    return torch.as_tensor(groups)
