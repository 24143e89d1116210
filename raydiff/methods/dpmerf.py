"""DP-MERF: differentially private mean embeddings with random features, here of many clients.

Harder, Adamczewski & Park, AISTATS 2021, arXiv 2002.11603.

Each client sends the noised sums of its pictures' random Fourier features for each label, once. The server adds over
clients, and trains a generator whose pictures have the same mean features.

Adversary: an honest-but-curious server that sees every upload. Unit of privacy: one record (replace-one, local trust).
Covered: the upload and every sample. Not covered: labels and numbers of records, which are public by declaration, so
that a replaced record keeps its label.

| paper | here |
|---|---|
| phi(x), D random features of a Gaussian kernel | `features`, of frequencies from a seed in the server's state |
| sigma, the kernel's length scale | `length`, or the median distance of public records of one label |
| f(y), the label one-hot; m_c, n_c | a row of the upload's `embedding` (R, D) for each row of labels; `counts` (R,) |
| sigma of the noise | sensitivity / mu(`epsilon`, `delta`), by the exact accountant |
| G_theta, codes z | `model` |
| the loss, the squared distance of mean embeddings | `training`, whose batch is of generated pictures |

**Sensitivity.** phi(x) = sqrt(2 / D) (cos <w_j, x>, sin <w_j, x>) over j <= D / 2 has norm 1, whatever x is. A record
adds it to its label's row, and one of the same label in its place moves that row by

    ||phi(x) - phi(x')||^2 = 2 - (4 / D) sum_j cos <w_j, x - x'> <= 4

so by 2 at most, where every cosine is -1. Rounding is kept below that by a clip to norm 1.

Deviations: counts of labels are public by declaration; the paper adds noise to them where classes are unbalanced. The
squared mean feature of a batch is unbiased (U-statistic), so that small batches do not favour pictures that are all
alike. The median distance is within labels. Layer normalisation in the generator, and a rate of 3e-3: at 1e-2 pictures
of 28x28 on black may become all black.
"""

import math
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, MultipleOf
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import SERVER_ONLY, Deployed, Mean, Metrics, Round
from raydiff.methods._noised_sums import NoisedSums, sum_by_row
from raydiff.models.compute import device
from raydiff.models.generator import Generator
from raydiff.models.training import Gradient, Training, optimize
from raydiff.privacy.release import ROUNDING, Event
from raydiff.seeding import generator
from raydiff.settings import Count, Positive, settings
from raydiff.tree import Params

EMBEDDING = "embedding"
KERNEL = "kernel"
TARGET = f"{SERVER_ONLY}/target"
CHUNK = 2048  # records whose features are in memory together
HEURISTIC = 1000  # public records, at most, whose distances give the length scale


@settings(frozen=True, kw_only=True)
class DPMERF(NoisedSums):
    """One noised mean embedding of each client, and a generator that matches their sum.

    Examples:
        >>> method = rd.DPMERF(epsilon=10.0, features=500)
        >>> method.rounds  # one in which clients send, and the generator's
        5
    """

    model: Generator = Generator()
    """The generator."""
    features: Annotated[int, Ge(2), MultipleOf(2)] = 2000
    """D: random features, half of them cosines. An even number."""
    length: Positive | None = None
    """Length scale of the kernel; None: the median distance of public records of one label. A public number."""
    training: Training = Training(steps=2000, batch=100, learning_rate=3e-3)
    """Training of the generator; `batch` is of generated pictures."""
    server_rounds: Count = 4
    """Rounds into which it is cut."""

    what: ClassVar[str] = "sums of random features"
    participating_rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self.training.refuse_epochs("training", "the generator is trained on no records")

    @property
    def rounds(self) -> int:
        return 1 + self.server_rounds

    @property
    def sensitivity(self) -> float:
        return 2.0

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """A fresh generator and the kernel."""
        length = self.length or self._median_distance(public, rng)
        kernel = {"seed": torch.randint(2**62, (), generator=rng), "length": torch.tensor(length, dtype=torch.float64)}
        return {**tree.prefixed("model", self.model.init(rng)), **tree.prefixed(KERNEL, kernel)}

    def _frequencies(self, server: Params) -> Tensor:
        seed, length = (server[f"{KERNEL}/{name}"].item() for name in ("seed", "length"))
        rng = generator(int(seed), "frequencies")
        return torch.randn(self.features // 2, self.model.pixels, generator=rng) / length

    def _median_distance(self, public: Records | None, rng: torch.Generator) -> float:
        """Median distance of public records of one label, in float64."""
        if public is None or not len(public):
            raise ValueError("length must be given where there are no public records: data.public is 0")
        some = torch.randperm(len(public), generator=rng)[:HEURISTIC]
        x = public.images[some].flatten(1)
        row = self.rows_of(public)[some]
        apart = torch.cat([torch.pdist(x[row == k]) for k in row.unique()])
        if not len(apart):
            raise ValueError("length must be given where no two public records have the same labels")
        return float(apart.median())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {EMBEDDING: (self.model.rows, self.features)}

    def add_up(self, server: Params, data: Records) -> tuple[Params, Metrics]:
        """The sum of each row's features, (R, D) float64."""
        rows = self.rows_of(data)
        count = self.model.rows
        w = self._frequencies(server)
        sums = torch.zeros(count, self.features, dtype=torch.float64)
        for x, row in zip(data.images.split(CHUNK), rows.split(CHUNK), strict=True):
            sums += sum_by_row(tree.clip_records(phi(x, w), 1 - ROUNDING), row, count)
        return {EMBEDDING: sums}, {}

    def aggregate(self, server: Params, uploads: Mean, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """Round 0: the mean features of each row of labels. Later: the generator is trained to have the same."""
        if rnd.number == 0:
            total, counts, _ = self.total(uploads)
            mean = total[EMBEDDING] / counts[:, None].clamp_min(1)
            target = {"mean": mean.float(), "counts": counts}
            return {**server, **tree.prefixed(TARGET, target)}, {}, []
        steps = self.training.part(rnd.number - 1, self.server_rounds)
        if not steps:
            return server, {}, []
        prefix = f"{SERVER_ONLY}/moments"
        moments = tree.under(prefix, server)
        gradient = self._gradient(server, rnd.rng)
        theta, moments, loss = optimize(
            tree.under("model", server), gradient, training=self.training, steps=steps, moments=moments
        )
        return {**server, **tree.prefixed("model", theta), **tree.prefixed(prefix, moments)}, {"server/loss": loss}, []

    def _gradient(self, server: Params, rng: torch.Generator) -> Gradient:
        """Gradient of the squared distance between target and generated mean features, unbiased, up to a constant."""
        target, counts = (server[f"{TARGET}/{name}"] for name in ("mean", "counts"))
        present = counts.nonzero()[:, 0]
        each = max(2, math.ceil(self.training.batch / len(present)))
        rows = present.repeat_interleave(each)
        weights = len(present) * (counts[present] / counts.sum()).square()
        where = device()
        w = self._frequencies(server).to(device())
        target = target[present].to(where)
        weights = weights.float().to(where)

        def gradient(theta: Params) -> tuple[Params, Tensor]:
            z = torch.randn(len(rows), self.model.code, generator=rng)
            features = phi(self.model.pictures(theta, z.to(where), rows.to(where)), w)
            mean = features.view(len(present), each, -1).mean(1)
            square = (each * mean.square().sum(1) - 1) / (each - 1)  # Unbiased, since phi has norm 1.
            loss = (weights * (square - 2 * (target * mean).sum(1))).sum()
            loss.backward()
            return {k: v.grad for k, v in theta.items() if v.grad is not None}, loss.detach()

        return gradient

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        about = "images of a generator fitted to noised random features"
        return self.deploy_sampler("generator", tree.under("model", server), about)


def phi(x: Tensor, w: Tensor) -> Tensor:
    """(N, D): the random features of pictures x (N, C, H, W) at frequencies w (D / 2, d); differentiable in x."""
    angles = x.flatten(1) @ w.T
    return torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(len(w))
