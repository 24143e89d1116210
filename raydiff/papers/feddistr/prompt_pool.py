"""FedDistr's server: merge the prompts of several clients into one pool with each base distribution once.

Clients are matched one after the other against the pool, within each label, by the Kuhn-Munkres algorithm on distances
(Eq. 13). A pair nearer than the threshold is parallel: the vector with more records stays. A prompt without such a
partner is orthogonal and is appended.

Shapes: m prompts of a client, P in the pool: vectors (., width) float32, labels and counts (.,) int64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from raydiff import tree
from raydiff.models.ddpm import Denoiser
from raydiff.papers.feddistr.latent.model import LatentDiffusion
from raydiff.tree import Params

HALVES = 200  # most public records of each label in each half, for the threshold


@dataclass(frozen=True, eq=False)
class Prompts:
    """Vectors (m, width), each with its label and its number of records, (m,) both."""

    vectors: Tensor
    labels: Tensor
    counts: Tensor


@dataclass(frozen=True, eq=False)
class PromptPool:
    """The server's prompts and their provenance."""

    prompts: Prompts
    """The vectors that stayed, each with the records of all merged ones."""
    largest: Tensor
    """(P,): the records of the vector that stayed, without those merged into it."""
    members: Tensor
    """(U, 3) int64: client, place in the client's upload, and row in the pool of each prompt that was sent."""

    @classmethod
    def empty(cls, width: int) -> "PromptPool":
        """A pool without prompts."""
        none = torch.empty(0, dtype=torch.int64)
        return cls(Prompts(torch.empty(0, width), none, none), none, torch.empty(0, 3, dtype=torch.int64))

    def with_prompts(self, client: int, sent: Prompts, *, threshold: float) -> "PromptPool":
        """The pool after this client's prompts."""
        pool = self.prompts
        size = len(self.prompts.labels)
        vectors = pool.vectors.clone()
        counts = pool.counts.clone()
        largest = self.largest.clone()
        partner = match_prompts(sent, pool, threshold=threshold)
        fresh = torch.nonzero(partner < 0)[:, 0]
        row = partner.clone()
        row[fresh] = torch.arange(size, size + len(fresh))
        for i in torch.nonzero(partner >= 0)[:, 0].tolist():
            p = int(partner[i])
            counts[p] += sent.counts[i]
            if sent.counts[i] > largest[p]:  # On a tie the earlier client's vector stays.
                vectors[p], largest[p] = sent.vectors[i], sent.counts[i]
        merged = Prompts(
            torch.cat([vectors, sent.vectors[fresh]]),
            torch.cat([pool.labels, sent.labels[fresh]]),
            torch.cat([counts, sent.counts[fresh]]),
        )
        places = torch.stack([torch.full_like(row, client), torch.arange(len(row)), row], dim=1)
        return PromptPool(merged, torch.cat([largest, sent.counts[fresh]]), torch.cat([self.members, places]))

    def to_params(self) -> Params:
        """Leaves of the server's state."""
        return {**vars(self.prompts), "largest": self.largest, "members": self.members}

    @classmethod
    def from_params(cls, params: Params) -> "PromptPool":
        """The inverse of `to_params`."""
        prompts = Prompts(params["vectors"], params["labels"], params["counts"])
        return cls(prompts, params["largest"], params["members"])


def match_prompts(sent: Prompts, pool: Prompts, *, threshold: float) -> Tensor:
    """(m,) int64: the partner in the pool of each prompt that was sent, or -1.

    The assignment of least total distance (Eq. 13) within each label, where a prompt without a partner costs the
    threshold, so that no near pair is split to give every prompt a partner.
    """
    from scipy.optimize import linear_sum_assignment  # half a second and more: only where it is used

    partner = torch.full((len(sent.labels),), -1)
    for label in sent.labels.unique().tolist():
        ours, theirs = (torch.nonzero(p.labels == label)[:, 0] for p in (sent, pool))
        distances = torch.cdist(sent.vectors[ours].double(), pool.vectors[theirs].double())
        rows, columns = linear_sum_assignment(distances.clamp_max(threshold).numpy())
        near = distances[rows, columns] < threshold
        partner[ours[rows][near]] = theirs[columns][near]
    return partner


def threshold_between(one: Prompts, other: Prompts) -> tuple[float, float, float]:
    """(threshold, same, different) from two uploads on halves of one set, in which every prompt has its partner.

    `same` is the median distance of the pairs of the best assignment, `different` of all other pairs of one label, or
    of any labels where each has one prompt; the threshold is the middle.
    """
    partner = match_prompts(one, other, threshold=torch.inf)
    distances = torch.cdist(one.vectors.double(), other.vectors.double())
    matched = torch.zeros(distances.shape, dtype=torch.bool)
    matched[torch.arange(len(partner))[partner >= 0], partner[partner >= 0]] = True
    alike = one.labels[:, None] == other.labels[None]
    apart = ~matched & alike if bool((~matched & alike).any()) else ~matched
    if not bool(matched.any() and apart.any()):
        raise ValueError("a threshold needs at least two public prompts: set method.threshold")
    same = float(distances[matched].median())
    different = float(distances[apart].median())
    return (same + different) / 2, same, different


def split_classes(classes: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of two disjoint random halves, each with the same number of every class, at most `HALVES`."""
    halves: tuple[list[Tensor], list[Tensor]] = ([], [])
    for c in classes.unique().tolist():
        rows = torch.nonzero(classes == c)[:, 0]
        rows = rows[torch.randperm(len(rows), generator=rng)]
        n = min(len(rows) // 2, HALVES)
        halves[0].append(rows[:n])
        halves[1].append(rows[n : 2 * n])
    return torch.cat(halves[0]), torch.cat(halves[1])


def repeat_rows(counts: Tensor, images: int) -> Tensor:
    """(n,) rows, each repeated in proportion to its count, at least once; n is `images` to within rounding."""
    each = (counts.double() * images / counts.sum()).round().long().clamp_min(1)
    return torch.arange(len(counts)).repeat_interleave(each)


def draw_prompts(model: LatentDiffusion, prompts: Prompts, labels: Tensor, rng: torch.Generator) -> Tensor:
    """(n, width): for each of these labels (n, K) a prompt of its class, drawn in proportion to records.

    The public start for a class without prompts.
    """
    weights = (prompts.labels[None] == labels[:, :1]) * prompts.counts.double()
    weights = torch.cat([weights, (weights.sum(1, keepdim=True) == 0).double()], dim=1)
    rows = torch.multinomial(weights, 1, generator=rng)[:, 0]
    return torch.cat([prompts.vectors, model.start[None]])[rows]


def denoisers(model: LatentDiffusion, prompts: Prompts, classes: int) -> tuple[Denoiser, ...]:
    """The frozen denoiser with the first prompt of each class, with the second, and so on.

    Cyclically for a class with fewer; a class without prompts has the public start.
    """
    rows = [torch.nonzero(prompts.labels == label)[:, 0] for label in range(classes)]
    vectors = torch.cat([prompts.vectors, model.start[None]])

    def denoiser(k: int) -> Denoiser:
        chosen = torch.stack([vectors[places[k % len(places)] if len(places) else -1] for places in rows])
        return lambda z_t, t, labels: model.predict(z_t, t, chosen[labels[:, 0]])

    return tuple(denoiser(k) for k in range(max(map(len, rows))))


def pool_table(pool: PromptPool) -> tuple[list[str], list[list[str]]]:
    """(columns, rows) of the pool with its provenance, as text: one row per prompt."""
    senders: dict[int, list[str]] = {}
    for client, place, row in pool.members.tolist():
        senders.setdefault(row, []).append(f"{client}:{place}")
    rows = []
    for p, (vector, label, count) in enumerate(zip(*vars(pool.prompts).values(), strict=True)):
        norm = tree.norm({"v": vector})
        rows.append([str(p), str(int(label)), str(int(count)), " ".join(senders[p]), f"{norm:.4f}"])
    return ["prompt", "label", "records", "client:place", "norm"], rows
