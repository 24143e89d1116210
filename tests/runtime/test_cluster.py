"""Joining and starting Ray, and what a cluster says of its nodes."""

from __future__ import annotations

import pytest

from raydiff.runtime import cluster


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch):
    def init(**_):
        raise Exception("The current node timed out during startup.\nThis could happen because of much.")

    monkeypatch.setattr(cluster.ray, "init", init)
    with pytest.raises(ValueError, match=r"^Ray did not start: [^\n]*$"), cluster.cluster():
        pass


@pytest.mark.parametrize(
    ("labels", "alive", "grows"),
    [({"ray.io/node-group": "gpus"}, True, True), ({"ray.io/node-group": "gpus"}, False, False), ({}, True, False)],
)
def test_a_cluster_with_node_groups_may_grow(labels, alive, grows, monkeypatch):
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster.ray, "nodes", lambda: [{"Labels": labels, "Alive": alive}])
    assert cluster.grows() == grows
