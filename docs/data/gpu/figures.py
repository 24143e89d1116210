"""The figures of one kind on the accelerator of this machine, each printed at once: `check.py` runs and collects them.

    python docs/data/gpu/figures.py mnist

Records are random: they have the sizes of the presets, and no figure depends on what they show.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from raydiff.models.compute import compute_with, device
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.samplers import Sampling
from raydiff.models.training import ON_STEP, Task, Training
from raydiff.seeding import generator

GPU = torch.cuda.is_available()
WARM, STEPS, PROFILED = (10, 50, 10) if GPU else (1, 2, 1)
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "spire-mnist": (1, 28, 28), "digits": (1, 8, 8)}


def tell(what: str, **numbers: object) -> None:
    """Print a line that `check.py` reads."""
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in numbers.items()}
    print(f"figure {json.dumps({'what': what, **rounded})}", flush=True)


def now() -> float:
    """Seconds, once the accelerator has done all that it was given."""
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(call: Callable[[], object], times: int) -> float:
    """Per call, after one that is not counted."""
    call()
    begun = now()
    for _ in range(times):
        call()
    return (now() - begun) / times


def busy(profiler: Any) -> float:
    """Seconds in which at least one kernel or copy ran."""
    events = [e for e in profiler.events() if str(e.device_type).endswith("CUDA")]
    spans = sorted((e.time_range.start, e.time_range.end) for e in events)
    total, reached = 0.0, 0.0
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e6


def preset(name: str, **changes: Any) -> tuple[DDPM, Training]:
    """A preset's denoiser with these changes of it or of its network, and its clients' training."""
    from raydiff.experiment.presets import study

    method: Any = study(name).experiment.method
    network = {k: v for k, v in changes.items() if k in UNet.__dataclass_fields__}
    model = replace(method.model, **{k: v for k, v in changes.items() if k not in network})
    model = replace(model, network=replace(model.network, **network))
    local = method.local if GPU else replace(method.local, batch=2)
    return model.for_data(SHAPES[name], (10,)), local


def task(model: DDPM, training: Training, steps: int, *, client: int = 0) -> Task:
    """So many steps on 500 random records."""
    rng = generator(client, "records")
    return Task(
        model=model,
        params=model.init(generator(client, "init")),
        images=torch.rand(500, *model.shape, generator=rng) * 2 - 1,
        labels=torch.randint(10, (500, 1), generator=rng),
        training=replace(training, steps=steps),
        rng=rng,
        steps=range(steps),
    )


def step(model: DDPM, training: Training, *, profile: bool = True) -> dict[str, object]:
    """Seconds per step of one client's training, the share of it in which the GPU works, seconds to the first step."""
    compute_with(1, model.precision)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) if GPU and profile else None
    more, at = PROFILED if profiler else 0, dict[int, float]()

    def watch(done: int, of: int, losses: torch.Tensor) -> None:
        if done in (1, WARM, WARM + STEPS):
            at[done] = now()
            if done == WARM + STEPS and profiler:
                profiler.start()

    ON_STEP.set(watch)
    one, begun = task(model, training, WARM + STEPS + more), now()
    fitted = one.alone()
    ON_STEP.set(None)
    each = (at[WARM + STEPS] - at.get(WARM, at[1])) / STEPS
    found: dict[str, object] = {
        "s_per_step": each,
        "first_step_s": at[1] - begun,
        "parameters": sum(v.numel() for v in fitted[0].values()),
    }
    if profiler:
        now()
        profiler.stop()
        try:
            found["busy"] = busy(profiler) / more / each
        except Exception as e:  # A profiler that cannot count must not cost the time of the step.
            found["busy"] = f"{type(e).__name__}: {e}"[:100]
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    return found


VARIANTS: dict[str, dict[str, Any]] = {
    "bfloat16": {"precision": "bfloat16"},
    "tf32": {"precision": "tf32"},
    "float32": {"precision": "float32"},
}


def trained(name: str) -> None:
    """A step of a preset's client in each arithmetic."""
    for variant, changes in VARIANTS.items():
        tell(f"step of {name}, {variant}", **step(*preset(name, **changes)))


def compiled(name: str) -> None:
    """The same, compiled; the first step waits for the compiler unless its cache has the network."""
    model, training = preset(name, precision="bfloat16", compile=True)
    cold = ", cold cache, beside other work" if "cold" in sys.argv else ""
    tell(f"step of {name}, bfloat16, compiled{cold}", **step(model, training))


def lockstep() -> None:
    """A step of all of 1, 4 and 16 clients, in lock-step and one by one."""
    from raydiff.models.lockstep import train_all

    compute_with(1, "float32")
    training, steps = Training(batch=20), 30 if GPU else 2
    for name, network in (("MLP", MLP()), ("UNet", UNet(widths=(32, 64, 64), layers=2))):
        model = DDPM(network=network).for_data((1, 28, 28), (10,))
        for clients in (1, 4, 16) if GPU else (1, 2):

            def all_of(count: int = clients, model: DDPM = model) -> list[Task]:
                return [task(model, training, steps, client=i) for i in range(count)]

            train_all(all_of()[: min(2, clients)])
            given, begun = all_of(), now()
            train_all(given)
            together = (now() - begun) / steps
            given, begun = all_of(), now()
            for one in given:
                one.alone()
            tell(f"{clients} clients, {name}", lockstep_s=together, one_by_one_s=(now() - begun) / steps)


def dpsgd() -> None:
    """A step of DP-SGD on networks of about 1 and 30 million parameters, 64 records."""
    from raydiff.privacy.private_gradient import Mechanism, PrivateGradient
    from raydiff.seeding import NoiseStream

    compute_with(1, "float32")
    for name, network in (
        ("1 M", UNet(widths=(32, 64, 64), layers=2)),
        ("30 M", UNet(widths=(128, 256, 256, 256), layers=2)),
    ):
        if not GPU and name == "30 M":
            continue
        model = DDPM(network=network).for_data((3, 32, 32), (10,))
        images, labels = torch.rand(400, 3, 32, 32) * 2 - 1, torch.randint(10, (400, 1))
        theta = {k: v.to(device()) for k, v in model.init(generator(0)).items()}
        given: dict[str, Any] = {"mechanism": Mechanism(), "rng": generator(1), "noise": NoiseStream(b"k" * 16, ("x",))}
        gradient = PrivateGradient(
            model.loss, images.to(device()), labels.to(device()), draws=model.draws, batch=64 if GPU else 1, **given
        )
        whole = seconds(lambda gradient=gradient, theta=theta: gradient(theta), 3)  # type: ignore[misc]
        noise = seconds(lambda gradient=gradient, theta=theta: gradient._normal(theta), 1)  # type: ignore[misc]
        tell(
            f"step of DP-SGD, {name}",
            s_per_step=whole,
            noise_s=noise,
            parameters=sum(v.numel() for v in theta.values()),
        )


def latent() -> None:
    """A step of `raydiff pretrain`'s two trainings, then one of FedDistr's inversion of 20 words by 8 latents."""
    from raydiff.papers.feddistr.latent import inversion, pretrain
    from raydiff.papers.feddistr.latent.model import load_latent

    compute_with(1, "float32")
    count, steps = (1000, 100) if GPU else (40, 2)
    images, labels = torch.rand(count, 1, 28, 28) * 2 - 1, torch.randint(10, (count, 1))
    begun, last = now(), ""

    def say(what: str, done: int, of: int, loss: float) -> None:
        nonlocal begun, last
        if what == last or not GPU:  # The first part also loads cuDNN.
            tell(f"step of pretrain, {what}", s_per_step=(now() - begun) / min(steps, done))
        begun, last = now(), what

    plan = pretrain.Pretraining(steps=2 * steps, vae_steps=2 * steps, batch=64 if GPU else 4)
    made = pretrain.pretrain(images, labels, training=plan, rng=generator(0), say=say)
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "/tmp/raydiff-figures-latent")
    pretrain.save_pretrained(made, folder, images=images, card={})
    model = load_latent(str(folder))
    latents = model.encode(images)
    groups = inversion.cluster(latents, labels[:, 0], count=2, least=2, fewer=True, rng=generator(1))

    def invert(steps: int) -> float:
        begun = now()
        inversion.invert(model, latents, groups, training=Training(steps=steps, batch=8), rng=generator(2))
        return now() - begun

    invert(2)
    tell("step of FedDistr's inversion", s_per_step=invert(steps) / steps, words=len(groups.counts))


def chain() -> None:
    """A step of mnist's reverse chain for N pictures: all of it, the network alone, the copies alone."""
    model, _ = preset("mnist")
    compute_with(1, model.precision)
    params = model.init(generator(0))
    there = {k: v.to(device()) for k, v in params.items()}
    steps = 5 if GPU else 1
    for count in (500, 2000, 4096) if GPU else (4,):
        x, labels = torch.randn(count, *model.shape), torch.zeros(count, 1, dtype=torch.long)
        t = torch.full((count,), 500)
        inputs = [v.to(device()) for v in (x, t, labels)]
        with torch.no_grad():
            network = seconds(lambda inputs=inputs: model.predict(there, *inputs), steps)  # type: ignore[misc]
        given = (x, t, labels)
        copies = seconds(lambda given=given, out=inputs[0]: [[v.to(device()) for v in given], out.cpu()], steps)  # type: ignore[misc]
        denoise = model.denoiser(params)
        for sampler in ("ddim", "ancestral"):
            sampling = Sampling(sampler=sampler, steps=steps)
            asked: dict[str, Any] = {"labels": labels, "start": model.timesteps, "bound": 1.0, "rng": generator(0)}
            whole = seconds(functools.partial(sampling.run, model, denoise, x, **asked), 1) / steps
            parts = {"network_s": network, "copies_s": copies, "cpu_s": whole - network - copies}
            tell(f"chain step, {sampler}, N = {count}", s_per_step=whole, **parts)


def processes() -> None:
    """mnist's step in 1, 2, 4 and 5 processes that share the GPU."""
    counts = (1, 2, 4, 5) if GPU else (1, 2)
    command = [sys.executable, __file__, "process"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    workers = [subprocess.Popen(command, **pipes) for _ in range(counts[-1])]
    try:
        for worker in workers:
            assert "ready" in worker.stdout.readline()  # type: ignore[union-attr]
        for count in counts:
            for worker in workers[:count]:
                worker.stdin.write("go\n")  # type: ignore[union-attr]
            found = [float(worker.stdout.readline()) for worker in workers[:count]]  # type: ignore[union-attr]
            tell(f"{count} processes on one GPU, step of mnist", s_per_step=sum(found) / count, slowest_s=max(found))
    finally:
        for worker in workers:
            worker.kill()


def process() -> None:
    """One of them: for each line that comes it trains, and says how long a step took."""
    model, training = preset("mnist")
    step(model, training, profile=False)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(step(model, training, profile=False)["s_per_step"], flush=True)


def inception() -> None:
    """Inception's features of 2,000 pictures, resized on the CPU as clean-fid does; the network has random weights."""
    import numpy as np
    import torchvision
    from PIL import Image

    from raydiff.evaluation.quality import inception as product

    spent = {"resize": 0.0}

    def resize(picture: Any) -> Any:
        begun = time.perf_counter()
        channels = (Image.fromarray(picture[..., i].astype(np.float32)) for i in range(3))
        large = np.stack([np.asarray(c.resize((299, 299), Image.Resampling.BICUBIC)) for c in channels], axis=2)
        spent["resize"] += time.perf_counter() - begun
        return large.clip(0, 255)

    resizers = types.ModuleType("cleanfid.resize")
    resizers.build_resizer = lambda mode: resize  # type: ignore[attr-defined]
    sys.modules.update({"cleanfid": types.ModuleType("cleanfid"), "cleanfid.resize": resizers})
    network = torchvision.models.inception_v3(weights=None, init_weights=False).eval()
    product._opened = lambda path: network  # type: ignore[assignment]
    features = product._load(Path("none"))
    features(torch.zeros(2, 1, 28, 28))
    count, begun = 2000 if GPU else 4, now()
    spent["resize"] = 0.0
    features(torch.rand(count, 1, 28, 28) * 2 - 1)
    tell(f"Inception's features of {count} pictures", seconds=now() - begun, resize_s=spent["resize"])


def lira() -> None:
    """Two shadows of mnist's client, 100 steps each, and the statistics of 1,000 records at 10 timesteps, 8 draws."""
    from raydiff.data.records import Records
    from raydiff.evaluation.attacks.lira import statistics

    model, training = preset("mnist")
    compute_with(1, model.precision)
    count, steps, draws = (1000, 100, 8) if GPU else (4, 1, 1)
    for shadow in range(2):
        begun = now()
        params, _, _ = task(model, training, steps, client=shadow).alone()
        fitted = now() - begun
        images = torch.rand(count, *model.shape) * 2 - 1
        records, begun = Records(images, torch.zeros(count, 1, dtype=torch.long), torch.arange(count)), now()
        asked: dict[str, Any] = {"timesteps": range(50, 1000, 100), "draws": draws, "rng": generator(0)}
        statistics(model.denoiser(params), records, alphas_bar=model.abar, **asked)
        tell(f"LiRA's shadow {shadow}", train_100_s=fitted, statistics_s=now() - begun)


def start() -> None:
    """From the start of a process to the end of its first step."""
    for name in ("digits", "mnist"):
        begun = time.perf_counter()
        subprocess.run([sys.executable, __file__, "first", name], check=True)
        tell(f"start of a process to its first step, {name}", seconds=time.perf_counter() - begun)


def first() -> None:
    """A process that takes one step."""
    model, training = preset(sys.argv[2])
    task(model, training, 1).alone()


FIGURES: dict[str, Callable[[], None]] = {
    **{name: (lambda name=name: trained(name)) for name in ("mnist", "cifar10", "spire-mnist")},  # type: ignore[misc]
    **{f"compiled-{name}": (lambda name=name: compiled(name)) for name in ("mnist", "cifar10")},  # type: ignore[misc]
    **{f.__name__: f for f in (lockstep, dpsgd, latent, chain, processes, process, inception, lira, start, first)},
}

if __name__ == "__main__":
    FIGURES[sys.argv[1]]()
