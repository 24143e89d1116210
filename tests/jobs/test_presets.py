"""Presets build, and their public numbers are what they say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))

import presets

from raydiff import trial
from raydiff.data import datasets


@pytest.mark.parametrize("name", ["digits", "mnist", "mnist-cpu"])
def test_clip_is_the_median_norm_of_the_public_split(name, data_root):
    experiment = trial.resolve(presets.PRESETS[name]().experiment)
    public = datasets.load(experiment.data).splits["public"].images.flatten(1).norm(dim=1)
    assert experiment.method.clip == pytest.approx(float(public.median()), abs=0.05)


def test_digits_needs_no_data_folder(monkeypatch):
    monkeypatch.delenv("RAYDIFF_DATA", raising=False)
    assert trial.resolve(presets.digits().experiment).method.model.shape == (1, 8, 8)
