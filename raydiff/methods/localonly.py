"""Non-collaborative training: each client trains a denoiser alone, and nothing is sent.

Baseline of PFDM (Patel et al., CVPR 2026). Privacy: no message leaves the client, so epsilon is 0 against the server;
what the client itself publishes is not covered.

Deviations: with `clip`, the denoiser is PFDM's client model (clipped and unclipped mixture), sampled from pure noise
with flag "unclipped", so that both methods share client models. "Centralised" is this method on one pooled client.
"""

from collections.abc import Hashable, Iterable
from typing import ClassVar

import torch

from raydiff.data.records import Center, Records, clip_center
from raydiff.federated.method import Deployed, LocalResult, Method, Metrics, Round, Target, Upload
from raydiff.federated.upload_spec import UploadSpec
from raydiff.methods._averaging import AnyModel, deploy_model
from raydiff.models.classifier import Classifier
from raydiff.models.ddpm import DDPM
from raydiff.models.samplers import Sampling
from raydiff.models.training import Training, fit_part, with_clipped_copies, with_clipped_flag
from raydiff.privacy.release import Event, Nothing, nothing
from raydiff.settings import Count, Positive, settings
from raydiff.tree import Params


@settings(frozen=True, kw_only=True)
class LocalOnly(Method):
    """Each client alone.

    Raises:
        ValueError: If `center` is given without `clip`, or `clip` for a model that takes no pictures.

    Examples:
        >>> rd.LocalOnly(local=rd.Training(epochs=3, batch=32)).rounds
        1
    """

    model: AnyModel = DDPM()
    """What each client trains: a denoiser, or a classifier of label column 0."""
    local: Training = Training()
    """Its training."""
    public_only: bool = False
    """Train on the public records in place of the client's: the control for methods that have public records."""
    clip: Positive | None = None
    """Train on PFDM's mixture with images clipped to this norm; None trains on the images alone."""
    center: Center = "grey"
    """Clip around grey (0 on [-1, 1]), around black (-1) or around the mean of the public records."""
    local_parts: Count = 1
    """Parts of the training; each is stored, so that a crash loses at most one."""
    sampling: Sampling = Sampling()
    """The chain from T to 0."""

    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.center != "grey" and self.clip is None:
            raise ValueError("center needs a clip: without one nothing is clipped")
        if self.clip is not None and not isinstance(self.model, DDPM):
            what = "a classifier" if isinstance(self.model, Classifier) else "rows of a table"
            raise ValueError(f"clip must be none for {what}: PFDM's mixture is for denoisers")

    @property
    def init_parts(self) -> int:
        return self.local_parts

    @property
    def init_key(self) -> Hashable:
        return (self.model, self.local, self.local_parts, self.clip, self.center, self.public_only)

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        return {}

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        if self.public_only:
            if public is None or not len(public):
                raise ValueError("public_only must be false where there are no public records: data.public is 0")
            data = public
        model = self.model
        records = (data.images, data.labels)
        if self.clip is not None:
            center = clip_center(self.center, public)
            assert isinstance(model, DDPM)
            model = with_clipped_flag(model)
            records = with_clipped_copies(*records, clip=self.clip, center=center)
        part = {"part": rnd.number, "parts": self.local_parts}
        return fit_part(model, state, records, training=self.local, rng=rnd.rng, **part)

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        return LocalResult(state, nothing())

    def upload_event(self, records: int, round_number: int) -> Event:
        return Nothing()

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        return UploadSpec()

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        for _ in uploads:
            pass
        return server, {}, []

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """Sample the client's own denoiser from pure noise; or classify."""
        if state is None:
            raise ValueError("LocalOnly has no model that its clients share: sample a client's")
        if self.clip is None:
            return deploy_model(self.model, self.sampling, shared=None, personal=state)
        assert isinstance(self.model, DDPM)
        denoiser = with_clipped_flag(self.model).denoiser(state, fixed=(0,))
        abar = self.model.abar
        samplers = self.sampling.samplers(self.model, denoiser)
        targets = {"client": Target((denoiser,), abar)}
        return Deployed(samplers, conditional=self.model.conditional, targets=targets)
