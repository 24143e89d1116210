"""Settings that a model, a network, a training or a sampler refuses. The message is one line and names the field."""

import math
from typing import Any

import pytest

from raydiff.models.classifier import CNN, Classifier, LeNet, Perceptron, ResNet18
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.d3pm_kernel import Linear, Sigmoid
from raydiff.models.ddpm import DDPM
from raydiff.models.generator import Generator
from raydiff.models.networks import MLP, UNet
from raydiff.models.samplers import Sampling
from raydiff.models.training import Training
from raydiff.papers.feddistr.latent.pretrain import Pretraining

REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    *((cls, {"widths": ()}, "widths") for cls in (CNN, LeNet, UNet, Pretraining)),
    *((cls, {"labels": (0,)}, "labels") for cls in (DDPM, Classifier, DiscreteDiffusion)),
    *((cls, {"shape": shape}, "shape") for cls in (DDPM, Classifier) for shape in ((8, 8), (1, 0, 8))),
    (CNN, {"hidden": 0}, "hidden"),
    (CNN, {"widths": (4, 0)}, "widths"),
    (Perceptron, {"widths": (0,)}, "widths"),
    (ResNet18, {"width": 12}, "width"),
    (Classifier, {"labels": ()}, "labels"),
    (Generator, {"code": 0}, "code"),
    (DDPM, {"schedule": "cosine"}, "schedule"),
    (DDPM, {"timesteps": 0}, "timesteps"),
    (DDPM, {"sigma_data": math.nan}, "sigma_data"),
    (DDPM, {"lognormal_mean": math.inf}, "lognormal_mean"),
    (DDPM, {"precision": "half"}, "precision"),
    (DDPM, {"prediction": "score"}, "prediction"),
    (UNet, {"widths": (32, 6)}, "widths"),
    (UNet, {"widths": (8, 4)}, "widths"),
    (UNet, {"layers": 0}, "layers"),
    (MLP, {"width": 0}, "width"),
    (MLP, {"depth": 0}, "depth"),
    (Sampling, {"sampler": "euler"}, "sampler"),
    (Sampling, {"steps": 0}, "steps"),
    (Training, {"steps": -1}, "steps"),
    (Training, {"batch": 0}, "batch"),
    (Training, {"learning_rate": math.inf}, "learning_rate"),
    (Training, {"weight_decay": -0.1}, "weight_decay"),
    (Training, {"optimizer": "lion"}, "optimizer"),
    (Training, {"decay": "step"}, "decay"),
    (Training, {"momentum": 0.5}, "momentum"),
    (Training, {"momentum": 1.0, "optimizer": "sgd"}, "momentum"),
    (Training, {"epochs": -1}, "epochs"),
    (Training, {"ema": 1.0}, "ema"),
    (DiscreteDiffusion, {"hidden": 0}, "hidden"),
    (DiscreteDiffusion, {"layers": 1}, "layers"),
    (DiscreteDiffusion, {"steps": 0}, "steps"),
    (DiscreteDiffusion, {"release": -1}, "release"),
    (DiscreteDiffusion, {"release": 11}, "release"),
    (DiscreteDiffusion, {"counts": ()}, "counts"),
    (DiscreteDiffusion, {"schedule": "linear"}, "schedule"),
    (DiscreteDiffusion, {"objective": "mse"}, "objective"),
    (Linear, {"rate": 1.5}, "rate"),
    (Sigmoid, {"rate": math.inf}, "rate"),
    (Pretraining, {"widths": (8,)}, "widths"),
    (Pretraining, {"vae_widths": ()}, "vae_widths"),
    (Pretraining, {"words": 0}, "words"),
    (Pretraining, {"learning_rate": math.nan}, "learning_rate"),
    (Pretraining, {"kl": -1.0}, "kl"),
    (Pretraining, {"empty": 1.0}, "empty"),
]


@pytest.mark.parametrize(("cls", "fields", "named"), REFUSED, ids=lambda v: getattr(v, "__name__", None))
def test_a_bad_setting_is_refused_by_name(cls: Any, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^[^\n]*\b{named}\b[^\n]*$"):
        cls(**fields)
