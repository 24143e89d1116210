"""What the jobs' command lines share: a preset, overrides by path, axes, and errors in one sentence."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from raydiff.cli.parser import Parser, nearest
from raydiff.experiment import overrides as settings
from raydiff.experiment import study as studies
from raydiff.experiment.config import Experiment
from raydiff.experiment.presets import names

REPRODUCE = "reproduce"
"""A preset that takes two options: `reproduce`."""


def preset(argv: Sequence[str], default: str = "digits") -> tuple[str, studies.Study, list[str]]:
    """(name, study, the other arguments): a first argument that is no option names the preset."""
    name, rest = (argv[0], list(argv[1:])) if argv and not argv[0].startswith("-") else (default, list(argv))
    if name == REPRODUCE:
        return _reproduced(rest)
    if name not in names.PRESETS:
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(names.PRESETS)}{nearest(name, names.PRESETS)}")
    return name, names.PRESETS[name](), rest


def _reproduced(argv: Sequence[str]) -> tuple[str, studies.Study, list[str]]:
    from raydiff.experiment.presets import papers  # needs presets, as this does

    parser = Parser(prog=f"raydiff sweep {REPRODUCE}", add_help=False, allow_abbrev=False)
    for name, choices in (("paper", papers.PAPERS), ("scale", papers.SCALES)):
        parser.add_argument(f"--{name}", choices=choices, required=name == "paper", default=choices[0])
    given, rest = parser.parse_known_args(argv)
    return f"{REPRODUCE}-{given.paper}-{given.scale}", papers.study(given.paper, given.scale), rest


def others(studies: Iterable[studies.Study], given: Mapping[str, Any], *, baselines: bool) -> Iterable[Experiment]:
    """The trials of further studies, under the overrides that apply to each."""
    for study in studies:
        base = settings.override(
            study.experiment, {k: v for k, v in given.items() if settings.has_path(study.experiment, k)}
        )
        of = {k: v for k, v in study.grid.items() if k not in given}
        yield from grid(base, of, study.beside if baselines and "method" not in given else ())


def shorthand(argv: Sequence[str]) -> list[str]:
    """`--model unet` is short for `--method.model.network unet`, `--protocol-only` for `--evaluation none`.

    Under `--protocol-only` nothing leaves a client but releases; the ledger of them (epsilon, the ceiling of attacks);
    costs: bytes, seconds, the numbers of uploads that were rejected, late or sent again and of clients that trained in
    lock-step; and the outcome, with its reason. No loss, clipped share, count of records, distance, attack, picture,
    table or bound is recorded, and no sampler logged.
    """
    long = {
        "--model": "--method.model.network",
        "--epsilon": "--method.epsilon",
        "--schedule": "--method.model.schedule",
    }
    out: list[str] = []
    for token in argv:
        name, equals, value = token.partition("=")
        out += ["--evaluation", "none"] if token == "--protocol-only" else [long.get(name, name) + equals + value]
    return out


def overrides(start: Experiment, argv: Sequence[str]) -> dict[str, Any]:
    """{path: value} of the command line, with the noise secret that the environment may hold."""
    secret = {"runtime.noise_secret": os.environ[settings.SECRET]} if settings.SECRET in os.environ else {}
    return {**settings.parse_overrides(start, argv), **secret}


def axes(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """{"seed": ("0", "1")} from ["seed=0,1"]."""
    out = {}
    for text in texts:
        path, equals, values = text.partition("=")
        if not equals or not values:
            raise ValueError(f"an axis looks like method.epsilon=1,5,10, got {text!r}")
        out[path.replace("-", "_")] = tuple(values.split(","))
    return out


def grid(base: Experiment, of: Mapping[str, Sequence[str]], beside: Sequence[studies.Arm]) -> list[Experiment]:
    """All combinations of the axes on `base`; then each arm on those axes that it has and does not set itself."""
    out = _combinations(base, of)
    for arm in beside:
        tokens = [f"--{path}={value}" for path, value in arm.changes.items()]
        start = settings.override(base, settings.parse_overrides(base, tokens))
        mine = {path: v for path, v in of.items() if settings.has_path(start, path) and path not in arm.changes}
        if (arm.private or arm.at_depths) and "method.epsilon" in mine:
            mine["method.epsilon"] = [v for v in mine["method.epsilon"] if v.lower() != "none"]
        found = _combinations(start, mine)
        out += [_without_noise(experiment) for experiment in found] if arm.at_depths else found
    return out


def _without_noise(experiment: Experiment) -> Experiment:
    """The same depth, without the noise that asked for it."""
    depth = experiment.method.depth  # type: ignore[union-attr]
    changed: Experiment = settings.override(experiment, {"method.epsilon": None, "method.t0": depth})
    return changed


def _combinations(start: Experiment, of: Mapping[str, Sequence[str]]) -> list[Experiment]:
    typed = {path: [settings.convert(start, path, v) for v in values] for path, values in of.items()}
    return [
        settings.override(start, dict(zip(typed, combination, strict=True)))
        for combination in itertools.product(*typed.values())
    ]


def varying(experiments: Sequence[Experiment], sampled: Iterable[str] = ()) -> Callable[[Experiment], str]:
    """A short name for each of these: its method, and the fields in which they differ, or will."""
    flats = [settings.flat(e) for e in experiments]
    keys = [k for k in flats[0] if k in sampled or any(k in f and f[k] != flats[0][k] for f in flats)]
    shown = [k for k in keys if k != "method" and not k.startswith(("runtime", "data_digest"))]

    def name(experiment: Experiment) -> str:
        flat = settings.flat(experiment)
        parts = [f"{k.rsplit('.', 1)[-1]}={_short(flat[k])}" for k in shown if k in flat]
        return " ".join([type(experiment.method).__name__, *parts])

    return name


def help_text(doc: str | None, options: str, study: studies.Study) -> str:
    """The job's docstring, its own options, and every field that can be overridden, with its default in this preset."""
    fields = "\n".join(f"  --{k} {_short(v)}" for k, v in settings.flat(study.experiment).items())
    return f"{doc}\n{options}\nfields (with this preset's values):\n{fields}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)


def distributions(base: Experiment, texts: Sequence[str]) -> dict[str, tuple[str, tuple[float, ...]]]:
    """{"path": ("loguniform", (1e-4, 1e-2))} from ["path=loguniform:1e-4,1e-2"]."""
    known = {"uniform": 2, "loguniform": 2, "randint": 2, "choice": 0}
    out: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for text in texts:
        path, _, rule = text.partition("=")
        kind, _, values = rule.partition(":")
        if kind not in known or not values:
            raise ValueError(
                "a sampled field looks like method.clip=loguniform:1,10 (uniform, loguniform, randint, choice), "
                f"got {text!r}"
            )
        path = path.replace("-", "_")
        arguments = values.split(",")
        if known[kind] and len(arguments) != known[kind]:
            raise ValueError(f"{kind} takes {known[kind]} numbers, got {values!r} for {path}")
        typed = tuple(settings.convert(base, path, v) for v in arguments)
        if kind != "choice" and not all(type(v) in (int, float) for v in typed):
            raise ValueError(f"{kind} needs numbers for {path}, got {values!r}")
        if kind in ("uniform", "loguniform") and any(type(v) is int for v in typed):
            raise ValueError(f"{path} takes integers: use randint or choice, not {kind}")
        if kind != "choice" and not typed[0] < typed[1]:
            raise ValueError(f"the range of {path} must go upwards, got {values!r}")
        if kind == "loguniform" and not typed[0] > 0:
            raise ValueError(f"the range of {path} must be positive for loguniform, got {values!r}")
        out[path] = (kind, typed)
    return out
