"""FedDistr: one-shot federated learning by exchanging prompts of a frozen latent diffusion model.

Zhao, Gu, Fan, Han & Yang, arXiv 2410.12530.

Each client clusters the latents of its records, learns one prompt vector per cluster by textual inversion, and sends
the vectors with labels and counts, once. The server keeps one vector of each base distribution, generates pictures from
them, and trains a classifier on the pictures.

Adversary: the server and readers of the pool; the unit is a client. Without `epsilon` vectors are sent as they are.
With it each is clipped and noised, every label has `clusters` of them, and counts are not sent. Declared: the labels of
which a client has `least` records, and its number of records. The latent model is public.

| paper | here |
|---|---|
| E, G (Eq. 10, Algorithm 1) | `model`, frozen |
| m_k (Eq. 11) | `clusters` within each label that the client has |
| v_{k,i} (Eq. 12) | the client's state, "v"; learned by `inversion` |
| p, "a photo of" | the latent model's prefix |
| e_{ij} (Eq. 13), parallel and orthogonal sets | `alignment.match`, `PromptPool` |
| "is small" (section 4.3) | `threshold`, on the distance |
| F_omega | `classifier`, trained by `training` on `images` pictures |

Deviations, where the paper leaves it open:

- Clients cluster within each label, with the same public m_k; prompts of different labels are never matched.
- The default threshold is the middle between the median distances of matched and of unmatched prompts of two halves of
  the public records; under noise its expected part is added.
- Clients are matched one after the other against the prompt pool. Vectors start at the latent model's public start.
- Pictures are in proportion to the records of each prompt; with `epsilon` a client's prompts have equal fractions of
  its records, and vectors are repeated if equal records give fewer clusters.
- A vector's distance from the start is clipped to `clip`; all of a client's vectors share the budget: sensitivity
  2 clip sqrt(m) under replace-one. The paper's noise has no clipping and no epsilon.
"""

import math
import sys
from collections.abc import Hashable, Iterable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import SCRATCH, Deployed, LocalResult, Method, Metrics, Round, Target, Upload
from raydiff.federated.upload_spec import TensorSpec, UploadSpec
from raydiff.models.classifier import Classifier
from raydiff.models.training import Training, fit
from raydiff.papers.feddistr import prompt_pool
from raydiff.papers.feddistr.latent.inversion import cluster, invert, too_few
from raydiff.papers.feddistr.latent.model import LatentDiffusion, LatentModel, check_disjoint
from raydiff.papers.feddistr.prompt_pool import PromptPool, Prompts
from raydiff.privacy import accountants
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Release, disclose, gaussian_rows
from raydiff.settings import Count, Natural, NonNegative, Positive, settings
from raydiff.tree import Params

UNPROTECTED = {
    "prompts": "prompt vectors, labels and counts, as they are",
    "latents": "latents and labels of all records, as they are",
}
"""Description of an upload without an epsilon."""


@settings(frozen=True, kw_only=True)
class FedDistr(Method):
    """Prompt vectors to the server, once; a classifier trained on what they generate.

    Raises:
        ValueError: If `epsilon` has no `clip`.

    Examples:
        >>> rd.FedDistr(clusters=3, threshold=0.5, images=500).rounds
        1
    """

    model: LatentModel = LatentModel()
    """The frozen latent diffusion model that all clients and the server have."""
    upload: Literal["prompts", "latents"] = "prompts"
    """prompts: the paper; latents: all records' latents and labels as they are, an upper bound on prompts' utility."""
    clusters: Count = 2
    """Base distributions per label of a client: m_k."""
    least: Natural = 0
    """Labels of which a client has fewer records are not sent."""
    inversion: Training = Training(steps=200, batch=16, learning_rate=0.02)
    """Of each vector; `batch` is per vector."""
    epsilon: accountants.Epsilon | None = None
    """Budget of one client's upload; none: vectors are sent as they are."""
    delta: accountants.Delta = 1e-5
    """The delta of `epsilon`."""
    clip: Positive | None = None
    """Norm to which a vector's distance from the public start is clipped, needed with `epsilon`. A public number."""
    threshold: Positive | None = None
    """Distance below which two vectors are merged; none: from the public records."""
    images: Count = 2000
    """Number of pictures that the server generates."""
    steps: Count = 25
    """DDIM steps of each."""
    guidance: NonNegative = 2.0
    """Weight of the condition; 1: no guidance."""
    classifier: Classifier = Classifier()
    """Trained on the pictures."""
    training: Training = Training(steps=1000, batch=64, learning_rate=1e-3)
    """Its training."""

    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self.inversion.refuse_epochs("inversion", "each vector is fitted on batches of its own group")
        if self.epsilon is not None:
            if self.clip is None:
                raise ValueError("clip must be given where epsilon is: without it no noise is enough")
            if self.upload == "latents":
                raise ValueError("epsilon must be none: upload latents sends private data")

    @property
    def init_key(self) -> Hashable:
        """The settings on which the vectors depend before any noise."""
        return (self.model.digest, self.upload, self.clusters, self.least, self.inversion)

    def check_records(self, records: Records) -> None:
        """Refuse a label with fewer records than clusters, and a record that the latent model was trained on.

        Raises ValueError.
        """
        check_disjoint(self.model.path, records.images)
        if self.upload == "prompts":
            kept = [n for n in records.labels[:, 0].bincount().tolist() if n >= max(self.least, 1)]
            if min(kept, default=0) < self.clusters:
                raise ValueError(too_few(min(kept, default=0), self.clusters))

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """The threshold, from the public records unless it is set."""
        if self.upload == "latents":
            return {}
        if self.threshold is not None:
            return {"threshold": torch.tensor(self.threshold)}
        if public is None or not len(public):
            raise ValueError("threshold must be set where there are no public records: data.public is 0")
        model = self.model.load()
        halves = prompt_pool.split_classes(public.labels[:, 0], rng)
        one, other = [self._prompts(model, public.select(rows), rng)[0] for rows in halves]
        threshold, same, different = prompt_pool.threshold_between(one, other)
        norm = float((one.vectors - model.start).norm(dim=1).median())
        values = {"threshold": threshold, "public/same": same, "public/different": different, "public/norm": norm}
        return {k: torch.tensor(v) for k, v in values.items()}

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        """One vector per cluster, by textual inversion: Eqs. 10 to 12."""
        if self.upload == "latents":
            return {}
        prompts, loss = self._prompts(self.model.load(), data, rnd.rng)
        state = {"v": prompts.vectors, "label": prompts.labels, "count": prompts.counts, "loss": torch.tensor(loss)}
        return tree.prefixed(SCRATCH, state)

    def _prompts(self, model: LatentDiffusion, data: Records, rng: torch.Generator) -> tuple[Prompts, float]:
        z = model.encode(data.images)
        labels = data.labels[:, 0]
        clusters = cluster(z, labels, count=self.clusters, least=self.least, rng=rng)
        vectors, loss = invert(model, z, clusters, training=self.inversion, rng=rng)
        return Prompts(vectors, clusters.labels, clusters.counts), loss

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Send the vectors: their distances from the public start, with labels; without `epsilon` with counts too."""
        if self.upload == "latents":
            sent = {"z": self.model.load().encode(data.images), "label": data.labels[:, 0]}
            return LocalResult(state, disclose(sent, UNPROTECTED[self.upload]))
        prompts = tree.under(SCRATCH, state)
        offsets = prompts["v"] - self.model.load().start
        metrics = {"inversion/loss": float(prompts["loss"]), "prompts": float(len(offsets))}
        if self.clip is not None:
            metrics["clipped_fraction"] = float((offsets.norm(dim=1) > self.clip).double().mean())
        return LocalResult(state, self._release(offsets, prompts["label"], prompts["count"], rnd), metrics)

    def _release(self, offsets: Tensor, labels: Tensor, counts: Tensor, rnd: Round) -> Release:
        if self.epsilon is None:
            clipped = tree.clip_records(offsets, self.clip) if self.clip else offsets
            return disclose({"x": clipped, "label": labels, "count": counts}, UNPROTECTED[self.upload])
        assert self.clip is not None and rnd.noise is not None
        of_labels = (torch.nonzero(labels == label)[:, 0] for label in labels.unique())
        rows = torch.cat([of_label.repeat(self.clusters)[: self.clusters] for of_label in of_labels])
        std = self._std(len(rows))
        public = {"label": labels[rows]}
        return gaussian_rows(offsets[rows], clip=self.clip, std=std, noise=rnd.noise, public=public)

    def upload_event(self, records: int, round_number: int) -> Event:
        """The budget is spent on a client's vectors together, however many they are."""
        if self.epsilon is None:
            return NonPrivate(UNPROTECTED[self.upload])
        assert self.clip is not None
        ratio = self._std(1) / (2 * self.clip)
        return Gaussian(ratio, "client", "replace_one", "local", declared=("label", "examples"))

    def _std(self, vectors: int) -> float:
        """Standard deviation of the noise on each of a client's vectors, so that all of them keep to the budget."""
        if self.epsilon is None or self.epsilon == math.inf:
            return 0.0
        assert self.clip is not None
        return 2 * self.clip * math.sqrt(vectors) / accountants.mu_for(self.epsilon, self.delta)

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        """Vectors with their labels, and counts or as many for each label; or a latent and a label for each record."""
        model = self.model.load()
        labels = (range(self.model.labels[0]),)
        if self.upload == "latents":
            latents = TensorSpec((examples, *model.latent_shape(self.model.shape)), torch.float32)
            return UploadSpec({"z": latents, "label": TensorSpec((examples,), torch.int64, labels)})
        vectors = TensorSpec(("m", model.width), torch.float32)
        if self.epsilon is not None:
            return UploadSpec({"x": vectors, "label": TensorSpec(("m",), torch.int64, labels, each=self.clusters)})
        counts = TensorSpec(("m",), torch.int64, (range(1, sys.maxsize),))
        return UploadSpec({"x": vectors, "label": TensorSpec(("m",), torch.int64, labels), "count": counts})

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """Align the prompts, generate pictures from the pool, and train the classifier on them."""
        model = self.model.load()
        classifier = self.classifier.for_data(self.model.shape, self.model.labels)
        if self.upload == "latents":
            sent = [(u.release.value["z"], u.release.value["label"]) for u in uploads]
            images = model.decode(torch.cat([z for z, _ in sent]))
            labels = torch.cat([y for _, y in sent])
            after = server
            metrics = Metrics()
        else:
            pool, metrics = self._aligned(model, server, uploads)
            rows = prompt_pool.repeat_rows(pool.prompts.counts, self.images)
            images = self._pictures(model, pool.prompts.vectors[rows], rnd.rng)
            labels = pool.prompts.labels[rows]
            after = {**server, **tree.prefixed("pool", pool.to_params())}
        params, _, loss = fit(
            classifier, classifier.init(rnd.rng), images, labels[:, None], training=self.training, rng=rnd.rng
        )
        metrics |= {"server/classifier_loss": loss, "server/images": float(len(images))}
        return {**after, **tree.prefixed("classifier", params)}, metrics, []

    def _aligned(self, model: LatentDiffusion, server: Params, uploads: Iterable[Upload]) -> tuple[PromptPool, Metrics]:
        pool = PromptPool.empty(model.width)
        threshold = float(server["threshold"])
        sent = 0
        for upload in uploads:
            value = upload.release.value
            m = len(value["label"])
            counts = value.get("count", torch.full((m,), max(1, upload.examples // max(1, m))))
            prompts = Prompts(model.start + value["x"], value["label"], counts)
            noise = 2 * model.width * self._std(m) ** 2  # expected part of both vectors' noise in a squared distance
            pool = pool.with_prompts(upload.client, prompts, threshold=math.sqrt(threshold**2 + noise))
            sent += m
        sizes = {"server/prompts": float(sent), "server/pool": float(len(pool.prompts.labels))}
        return pool, sizes | {f"server/{k}": float(v) for k, v in server.items()}

    def _pictures(self, model: LatentDiffusion, vectors: Tensor, rng: torch.Generator) -> Tensor:
        return model.sample(vectors, rng, shape=self.model.shape, steps=self.steps, guidance=self.guidance)

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """The classifier, and the pool with its pictures and its denoisers to attack, the same for every client."""
        classifier = self.classifier.for_data(self.model.shape, self.model.labels)
        classify = classifier.classify(tree.under("classifier", server))
        if self.upload == "latents":
            return Deployed(classify=classify)
        model = self.model.load()
        prompts = PromptPool.from_params(tree.under("pool", server)).prompts
        target = Target(prompt_pool.denoisers(model, prompts, self.model.labels[0]), model.abar, encode=model.encode)

        def sample(labels: Tensor, rng: torch.Generator) -> Tensor:
            return self._pictures(model, prompt_pool.draw_prompts(model, prompts, labels, rng), rng)

        about = "pictures from the pool of prompts"
        return Deployed({"ddim": sample}, classify=classify, about=about, targets={"pool": target})

    def tables(self, server: Params) -> dict[str, tuple[list[str], list[list[str]]]]:
        """The pool with its provenance: which client's prompts each of its rows stands for."""
        if self.upload == "latents":
            return {}
        return {"pool": prompt_pool.pool_table(PromptPool.from_params(tree.under("pool", server)))}
