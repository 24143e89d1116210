"""fedjax: `for_each_client` with its jit backend, in one process on one core."""

from __future__ import annotations

import math
import sys
from typing import Any

import fedjax
import jax
import jax.numpy as jnp

from analysis.bench.peers.work import BATCH, Clock, Given, read


def loss(given: Given, params: Any, batch: Any, rng: Any) -> Any:
    """The denoising loss of raydiff's MLP."""
    images = batch["x"]
    labels = batch["y"]
    at_t, at_z = jax.random.split(rng)
    t = jax.random.randint(at_t, (len(images),), 1, given.timesteps + 1)
    z = jax.random.normal(at_z, images.shape)
    at = jnp.asarray(given.abar)[t].reshape(-1, 1, 1, 1)
    x = jnp.sqrt(at) * images + jnp.sqrt(1 - at) * z

    def linear(name: str, h: Any) -> Any:
        return h @ params[f"{name}.weight"].T + params[f"{name}.bias"]

    def norm(name: str, h: Any) -> Any:
        centred = h - h.mean(1, keepdims=True)
        std = jnp.sqrt(jnp.square(centred).mean(1, keepdims=True) + 1e-5)
        return centred / std * params[f"{name}.weight"] + params[f"{name}.bias"]

    angle = (t * (1000 / given.timesteps))[:, None] * jnp.exp(jnp.arange(32) * (-math.log(10_000) / 32))
    code = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], 1)
    emb = linear("time.2", jax.nn.silu(linear("time.0", code))) + params["conditions.tables.0.weight"][labels[:, 0]]
    emb = jax.nn.silu(emb)
    h = linear("enter", x.reshape(len(x), -1))
    for i in range(given.depth):
        scale, shift = jnp.split(linear(f"blocks.{i}.condition", emb), 2, 1)
        inner = norm(f"blocks.{i}.norm", h) * (1 + scale) + shift
        h = h + linear(f"blocks.{i}.second", jax.nn.silu(linear(f"blocks.{i}.first", inner)))
    out = linear("leave.1", norm("leave.0", h)).reshape(x.shape)
    return jnp.square(z - out).mean()


def main(path: str) -> None:
    given = read(path)
    clock = Clock()
    optimizer = fedjax.optimizers.adam(given.learning_rate)
    gradient = jax.grad(lambda params, batch, rng: loss(given, params, batch, rng))

    def begin(shared: Any, rng: Any) -> Any:
        return {"params": shared, "state": optimizer.init(shared), "rng": rng}

    def step(at: Any, batch: Any) -> Any:
        rng, used = jax.random.split(at["rng"])
        state, params = optimizer.apply(gradient(at["params"], batch, used), at["state"], at["params"])
        return {"params": params, "state": state, "rng": rng}

    def end(shared: Any, at: Any) -> Any:
        return jax.tree_util.tree_map(lambda a, b: a - b, shared, at["params"])

    @jax.jit
    def apply(server: Any, changes: Any) -> Any:
        return jax.tree_util.tree_map(lambda leaf, *of: leaf - sum(of) / len(of), server, *changes)

    each = fedjax.for_each_client(begin, step, end)
    rows = [slice(i * BATCH, (i + 1) * BATCH) for i in range(given.steps)]
    batches = [[{"x": x[r], "y": y[r]} for r in rows] for x, y in zip(given.images, given.labels, strict=True)]
    server = {k: jnp.asarray(v) for k, v in given.weights.items()}
    for number in range(given.rounds):
        keys = jax.random.split(jax.random.PRNGKey(number), given.clients)
        clients = [(i, batches[i], keys[i]) for i in range(given.clients)]
        changes = [change for _, change in each(server, clients)]
        server = jax.block_until_ready(apply(server, changes))
        clock.tick()
    assert all(bool(jnp.isfinite(v).all()) for v in server.values())
    clock.report()


if __name__ == "__main__":
    main(sys.argv[1])
