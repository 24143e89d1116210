"""Private Evolution: pictures that private records vote for, here of many clients.

Lin, Gopi, Kulkarni, Nori & Yekhanin, ICLR 2024, arXiv 2305.15560.

The server keeps candidate pictures for each label. In every round each record votes for the nearest candidate of its
label, and each client sends noised counts of votes. The server draws the next candidates in proportion to their sum,
and varies all copies of one but the first. A sample is one of the last candidates, drawn at random.

Adversary: an honest-but-curious server that sees every upload. Unit of privacy: one record (replace-one, local trust).
Covered: the uploads of all rounds together, and every sample. Not covered: labels and numbers of records, which are
public by declaration, so that a replaced record keeps its label; and the public records, which samples are made of.

| paper | here |
|---|---|
| S_t, the samples of one class | `model/pictures` (R, N, C, H, W), N `candidates` for each row of labels |
| RANDOM_API | N public pictures in random order for each row of labels, whatever their own labels |
| VARIATION_API, its degree | a fraction of the way to a public picture nearby: `variation`, falling linearly |
| T | `rounds` |
| Algorithm 2, the histogram of votes | the upload's `votes` (R, N), with `counts` (R,), which are public |
| sigma | sqrt(2 T) / mu(`epsilon`, `delta`), by the exact accountant |
| H, the threshold | `project_onto_counts` |

**Sensitivity.** Replaced by another of its label, a record moves its vote within a row, a distance of sqrt(2) at most.
Candidates depend on earlier rounds; Gaussian mechanisms of one mu compose adaptively as if they were fixed (Dong, Roth
& Su 2019, arXiv 1905.02383), so T rounds cost mu = sqrt(2 T) / sigma. The paper's sigma is for an added record.

Deviations: public records take the place of a model trained on public data, so candidates stay among mixtures of these;
without public records they start as noise. Votes go by distances of pixels, not of Inception features, without
lookahead. H leaves as many votes for each row of labels as there are records. Draws are systematic, and a first copy is
not varied, so that no candidate with votes is lost. In DPSDA-FL (arXiv 2407.05174) every client runs its own evolution;
here all vote for the same candidates. `rounds`, `candidates` and `variation` were chosen on digits' validation records.
"""

import math
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import SERVER_ONLY, Deployed, Mean, Metrics, Round
from raydiff.methods._noised_sums import NoisedSums
from raydiff.models.by_row import Population
from raydiff.privacy.release import Event
from raydiff.settings import Count, Fraction, settings
from raydiff.tree import Params

VOTES = "votes"
PICTURES = "model/pictures"
POOL = f"{SERVER_ONLY}/pool"
NEIGHBOURS = 5  # public pictures nearest to a candidate, towards one of which it is moved


@settings(frozen=True, kw_only=True)
class Evolution(NoisedSums):
    """Clients vote for candidates; those with votes, and variations of them, are the next ones.

    Examples:
        >>> rd.Evolution(epsilon=5.0, rounds=4, candidates=100).variation
        0.7
    """

    model: Population = Population()
    """Shape of the pictures, and the rows of labels."""
    rounds: Count = 3
    """T: how often clients vote. The noise of each vote goes with its square root."""
    candidates: Annotated[int, Ge(2)] = 50
    """N: candidates for each row of labels. The more there are, the fewer votes each gets, under the same noise."""
    variation: Fraction = 0.7
    """Fraction of the way to a public picture nearby that a copy moves in round 0; it falls to 1 / T of it."""

    what: ClassVar[str] = "votes for candidates"
    sensitivity: ClassVar[float] = math.sqrt(2)

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """All public pictures (or noise), and for each row of labels the first N of them in random order."""
        if public is not None and len(public):
            pool = public.images.clone()
        else:
            pool = 2 * torch.rand(self.candidates * self.model.rows, *self.model.shape, generator=rng) - 1
        turns = math.ceil(self.candidates / len(pool))
        orders = [torch.randperm(len(pool), generator=rng).repeat(turns) for _ in range(self.model.rows)]
        return {PICTURES: pool[torch.stack(orders)[:, : self.candidates]], POOL: pool}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {VOTES: (self.model.rows, self.candidates)}

    def add_up(self, server: Params, data: Records) -> tuple[Params, Metrics]:
        """Votes (R, N). The metric is the mean distance from a record to its candidate."""
        pictures = server[PICTURES]
        rows = self.rows_of(data)
        count, n = pictures.shape[:2]
        nearest = torch.zeros_like(rows)
        apart = torch.zeros(len(rows))
        for k in rows.unique():
            distances = torch.cdist(data.images[rows == k].flatten(1), pictures[k].flatten(1))
            apart[rows == k], nearest[rows == k] = distances.min(1)
        votes = (rows * n + nearest).bincount(minlength=count * n).view(count, n)
        return {VOTES: votes.double()}, {"vote/distance": float(apart.mean())}

    def aggregate(self, server: Params, uploads: Mean, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """The next candidates. The metric is the mean number of distinct parents per row of labels."""
        total, counts, _ = self.total(uploads)
        parents = sample_parents(project_onto_counts(total[VOTES], counts), rnd.rng)
        chosen = server[PICTURES][torch.arange(len(parents))[:, None], parents]
        copies = parents.diff(dim=1, prepend=torch.full((len(parents), 1), -1)) == 0
        fraction = self.variation * (1 - rnd.number / self.rounds)
        chosen[copies] = vary_pictures(chosen[copies], server[POOL], fraction, rnd.rng)
        return {**server, PICTURES: chosen}, {"server/parents": float((~copies).sum(1).double().mean())}, []

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        about = "public pictures, as they are or mixed, that noised votes have chosen"
        return self.deploy_sampler("population", tree.under("model", server), about)


def project_onto_counts(votes: Tensor, counts: Tensor) -> Tensor:
    """(R, N): noised votes (R, N) projected onto the nonnegative histograms that sum to counts (R,).

    By Held, Wolfe & Crowder 1974. Under Gaussian noise it is the likeliest histogram.
    """
    ordered = votes.sort(dim=1, descending=True).values
    levels = (ordered.cumsum(1) - counts[:, None]) / torch.arange(1, votes.shape[1] + 1)
    last = (ordered > levels).sum(1, keepdim=True).clamp_min(1) - 1
    return (votes - levels.gather(1, last)).clamp_min(0)


def sample_parents(votes: Tensor, rng: torch.Generator) -> Tensor:
    """(R, N), ascending in each row: the parents of the next N candidates, by votes (R, N).

    Each parent occurs N times its fraction of the votes, rounded down or up at random. Without votes all stay.
    """
    n = votes.shape[1]
    votes = torch.where(votes.sum(1, keepdim=True) > 0, votes, 1.0)
    ends = votes.cumsum(1) / votes.sum(1, keepdim=True) * n
    points = torch.arange(n) + torch.rand(len(votes), 1, generator=rng, dtype=votes.dtype)
    return torch.searchsorted(ends, points).clamp_max(n - 1)


def vary_pictures(x: Tensor, pool: Tensor, fraction: float, rng: torch.Generator) -> Tensor:
    """Pictures x (M, C, H, W), each moved this fraction of the way to one of its nearest pictures in the pool."""
    near = torch.cdist(x.flatten(1), pool.flatten(1)).topk(min(NEIGHBOURS, len(pool)), largest=False).indices
    to = near.gather(1, torch.randint(near.shape[1], (len(x), 1), generator=rng))[:, 0]
    return x.lerp(pool[to], fraction)
