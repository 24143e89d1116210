"""The job as people call it, on a finished run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raydiff import seeding
from raydiff.experiment.trial import make_clients
from raydiff.papers.pfdm import reconstruct_command as reconstruct
from raydiff.privacy import grid
from raydiff.results.finished import open_finished
from raydiff.tree import clip_records


def call(storage: Any, run: str, out: Path, *more: str) -> dict[str, float]:
    assert reconstruct.main([run, "--out", str(out), "--storage", str(storage.root), *more]) == 0
    metrics: dict[str, float] = json.loads((out / "metrics.json").read_text())
    return metrics


def test_uploads_and_originals_belong_together(storage) -> None:
    """Take each clipped and scaled record away from its upload: the noise of this very record is left."""
    finished = open_finished(storage.folder("pfdm"))
    trial, method = finished.trial, reconstruct.method_of_run(finished)
    uploads, originals = reconstruct.load_uploads(finished, method, 40)
    assert len(uploads) == len(originals) == len(set(originals.numbers.tolist())) == 40
    abar = float(method.model.abar[method.depth])
    left = (uploads - abar**0.5 * clip_records(originals.images, method.clip)) / (1 - abar) ** 0.5
    places = {n: (c.client_id, i) for c in make_clients(trial, [0, 1]) for i, n in enumerate(c.data.numbers.tolist())}
    for noise, number in zip(left, originals.numbers.tolist(), strict=True):
        client, i = places[number]
        stream = seeding.NoiseStream(trial.keys.secret, (trial.keys.digest, "client", client, "round", 0))
        drawn = stream.normal([i], (1, 8, 8))[0].float()
        assert torch.allclose(noise, drawn, atol=0.5 / grid.FINENESS + 1e-5)  # half a step of the grid


def test_both_attackers_and_the_files(storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = call(storage, "pfdm", tmp_path / "a", "--records", "20", "--public-steps", "3")
    out = capsys.readouterr().out
    assert "training a denoiser on 80 public records, 3 steps\n" in out and "by chance: closest 0.05," in out
    names = {k.split("/")[1] for k in metrics}
    assert names == {"upload", "global", "pretrained"}
    assert {f"reconstruction/{n}/{k}" for n in names for k in ("mse", "psnr", "ssim", "closest")} <= metrics.keys()
    assert metrics["reconstruction/global/mse"] != metrics["reconstruction/pretrained/mse"]
    picture = Image.open(tmp_path / "a" / "reconstruction.png")
    assert picture.text["privacy"].startswith("none") and picture.height == 4 * 9 * 4
    margin = picture.width - 10 * 9 * 4
    names = np.asarray(picture)[:, :margin].reshape(4, 36, margin)  # each row has one
    assert 50 < margin < 100 and (names.max(axis=(1, 2)) > 200).all()


def test_only_the_clients_that_took_part_have_uploads(tiny, copied) -> None:
    copied.finish("half", replace(tiny, evaluation=None, participants=1))
    finished = open_finished(copied.folder("half"))
    uploads, originals = reconstruct.load_uploads(finished, reconstruct.method_of_run(finished), 1000)
    (mine,) = [c for c in make_clients(finished.trial, [0, 1]) if originals.numbers[0] in c.data.numbers]
    assert len(uploads) == len(mine.data) and set(originals.numbers.tolist()) == set(mine.data.numbers.tolist())


def test_without_public_records_the_global_model_attacks_alone(
    tiny, copied, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied.finish("bare", replace(tiny, evaluation=None, data=replace(tiny.data, public=0, train=120)))
    metrics = call(copied, "bare", tmp_path / "o", "--records", "6")
    assert {k.split("/")[1] for k in metrics} == {"upload", "global"}
    assert "no pretrained attacker: the run has no public split\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"^--public-steps needs public records: the run's data.public is 0$"):
        call(copied, "bare", tmp_path / "p", "--public-steps", "2")
