"""What a process does with the GPU that it was given or not given, and how often it compiles."""

from collections.abc import Callable

import pytest
from child_process import answer

from raydiff.data import datasets
from raydiff.experiment import suggested, toml_file as file
from raydiff.experiment.presets import PRESETS

pytestmark = pytest.mark.gpu

COMPILE = """
    import json, logging, sys, torch
    import torch._dynamo as dynamo
    from raydiff.models.ddpm import DDPM
    from raydiff.models.networks import MLP
    from raydiff.models.training import Training, fit
    from raydiff.seeding import generator
    torch.set_num_threads(1)
    real, graphs, warned = torch.compile, [], []
    def backend(graph, inputs):
        graphs.append(1)
        return graph.forward
    torch.compile = lambda call, **options: real(call, **{**options, "backend": backend})
    class Heard(logging.Handler):
        def emit(self, record):
            if "recompile_limit" in record.getMessage():
                warned.append(record.getMessage().splitlines()[0])
    logging.getLogger("torch._dynamo").addHandler(Heard())
    for number in range(int(sys.argv[1])):
        model = DDPM(network=MLP(width=8 + 4 * number, depth=1), timesteps=20, compile=True)
        model = model.for_data((1, 8, 8), (10,))
        x, y = torch.randn(60, 1, 8, 8), torch.randint(10, (60, 1))
        params, _, _ = fit(model, model.init(generator(0)), x, y, training=Training(steps=3, batch=8), rng=generator(1))
        denoise = model.denoiser(params)
        for rows in (1, 7, 50, 60):  # Samples, chunks and the evaluation's splits.
            t, labels = torch.ones(rows, dtype=torch.long), torch.zeros(rows, 1, dtype=torch.long)
            denoise(torch.randn(rows, 1, 8, 8), t, labels)
    unique = dynamo.utils.counters["stats"].get("unique_graphs", 0)
    print(json.dumps({"graphs": len(graphs), "warned": warned[:1], "unique_graphs": unique}))
"""


@pytest.mark.parametrize("models", [1, 3, 9])
def test_every_model_of_a_process_is_compiled(models: int, figure: Callable[..., None]) -> None:
    """The ninth as the first: beyond its limit of graphs for one code object dynamo runs what comes uncompiled."""
    result = answer(COMPILE, models, timeout=90)
    figure(f"graphs of {models} compiled models", **result)
    assert not result["warned"]
    assert models <= result["graphs"] <= 4 * models


KEEP_OFF = """
    import json, sys
    exec(sys.argv[1])
    from raydiff.runtime.place import cap_memory
    from raydiff.models.compute import device
    import torch
    cap_memory(0.0)
    x = torch.ones(2, device=device())
    print(json.dumps({"device": x.device.type, "context": torch.cuda.is_initialized()}))
"""
BEFORE = {
    "nothing": "",
    "diffusers": "import diffusers; from diffusers import UNet2DModel",
    "is_available": "import torch; torch.cuda.is_available()",
    "device_count": "import torch; torch.cuda.device_count()",
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_process_without_a_share_keeps_off_the_gpu(before: str, figure: Callable[..., None]) -> None:
    result = answer(KEEP_OFF, BEFORE[before])
    figure(f"without a share, after {before}", **result)
    assert result == {"device": "cpu", "context": False}


SUGGESTED = """
    import json, sys, torch
    from raydiff.models.compute import device
    from raydiff.runtime.place import cap_memory
    cap_memory(float(sys.argv[1]))
    print(json.dumps({"device": str(torch.ones(2, device=device()).device.type)}))
"""


@pytest.mark.parametrize("share", ["gpu_per_worker", "gpu_server"])
def test_the_experiment_written_for_a_gpu_computes_on_it(share: str, card: int) -> None:
    """Of raydiff init: its worker's share, and the server's, are not those of a process that is kept off the GPU."""
    result = suggested.for_pictures(datasets.load_dataset(datasets.Data(name="digits")), gpu=True)
    text = suggested.written("", result, {"data.name": "digits", **result.values})
    experiment = file.parse_study(text, "x.toml", PRESETS).experiment
    assert answer(SUGGESTED, getattr(experiment.runtime, share))["device"] == "cuda"
