"""Memory of a GPU that several processes share, and which errors of CUDA a process survives."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from child_process import answer, read, start

from raydiff.runtime.place import CUDA_CONTEXT_BYTES

pytestmark = pytest.mark.gpu

MB, GIB = 10**6, 2**30


def used_bytes() -> int:
    """What the driver counts as used on the whole card; asking takes no memory there."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout) * 2**20


FILL = """
    import json, sys, torch
    from raydiff.runtime.place import cap_memory
    cap_memory(float(sys.argv[1]))
    x = torch.randn(64, 64, device="cuda")
    image = torch.randn(8, 8, 16, 16, device="cuda")
    def compute():  # What a training step loads: cuBLAS and cuDNN.
        torch.nn.functional.conv2d(image, image[:, :, :3, :3])
        return float((x @ x).sum())
    def same():
        try:
            return compute() == before
        except RuntimeError as e:
            return str(e).splitlines()[0]
    before, held, error = compute(), [], ""
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    try:
        while True:
            held.append(torch.empty(2**24, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as e:
        error = str(e).splitlines()[0]
    reserved = torch.cuda.memory_reserved()
    if held:
        held.pop()  # The room of a step's own tensors, which stays reserved.
    print(json.dumps({"reserved": reserved, "same": same(), "error": error}), flush=True)
    sys.stdin.readline()
    print(json.dumps({"same": same()}), flush=True)
"""


@pytest.mark.parametrize("count", [2, 5, 10])
def test_processes_fill_their_caps_side_by_side(count: int, card: int, figure: Callable[..., None]) -> None:
    """Each is refused memory at its own cap, none earlier because the card is full, and all can still compute."""
    share, empty = 1 / count, used_bytes()
    processes = [start(FILL, share) for _ in range(count)]

    def told(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    try:
        for process in processes:
            read(process)
        contexts = (used_bytes() - empty) / count
        for process in processes:
            told(process)
        full = [read(process) for process in processes]
        used = used_bytes() - empty
        for process in processes:
            told(process)
        after = [read(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    cap, reserved = int(share * card) - CUDA_CONTEXT_BYTES, [one["reserved"] for one in full]
    context = (used - sum(reserved)) / count
    figure(
        f"{count} processes at their caps",
        cap_gib=round(cap / GIB, 3),
        least_reserved_gib=round(min(reserved) / GIB, 3),
        used_gib=round((used + empty) / GIB, 2),
        card_gib=round(card / GIB, 2),
        context_gib=round(context / GIB, 3),
        with_little_gib=round(contexts / GIB, 3),
        errors=sorted({one["error"][:200] for one in full}),
        computing=sorted({str(one["same"])[:200] for one in [*full, *after]}),
    )
    assert all(one["same"] is True for one in [*full, *after])
    assert all(abs(result - cap) <= 25 * MB for result in reserved)
    assert context <= CUDA_CONTEXT_BYTES


TRAINING = """
    import json, sys, torch
    from figures import GPU, preset, task
    from raydiff.models.samplers import Sampling
    from raydiff.models.compute import compute_with
    from raydiff.models.lockstep import train_all
    from raydiff.runtime.place import cap_memory
    name, share, cohort = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    cap_memory(share)
    model, training = preset(name)
    compute_with(1, model.precision)
    steps, rows, rng = 100 if GPU else 1, 4096 if GPU else 4, torch.Generator().manual_seed(0)
    done = [fitted for fitted, _ in train_all([task(model, training, steps, client=i) for i in range(cohort)])]
    for one in done:
        if isinstance(one, BaseException):
            raise one
    def memory():
        if not GPU:
            return {"allocated": 0, "reserved": 0}
        found = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        torch.cuda.reset_peak_memory_stats()
        return found
    trained, labels = memory(), torch.zeros(rows, 1, dtype=torch.long)
    chain, x = Sampling(sampler="ddim", steps=2), torch.randn(rows, *model.shape)
    chain.run(model, model.denoiser(done[0][0]), x, labels=labels, start=model.timesteps, bound=1.0, rng=rng)
    print(json.dumps({"trained": trained, "sampled": memory()}))
"""


@pytest.mark.parametrize(
    ("name", "share", "cohort"),
    [("digits", 0.05, 1), ("mnist", 0.2, 1), ("cifar10", 0.2, 1), ("spire-mnist", 0.2, 16)],
    ids=["digits", "mnist", "cifar10", "cohort-of-16"],
)
def test_a_preset_fits_its_share(
    name: str, share: float, cohort: int, request: pytest.FixtureRequest, figure: Callable[..., None]
) -> None:
    """100 training steps, then the samples of an evaluation (4096 in one pass), without an error for want of memory."""
    result = answer(TRAINING, name, share, cohort, timeout=100)
    gib = {f"{when}_{k}_gib": round(v / GIB, 3) for when, both in result.items() for k, v in both.items()}
    figure(f"memory of {request.node.callspec.id}", share=share, **gib)


FAULT = """
    import json, sys, torch
    from raydiff.models.compute import device_lost
    kind, held, error, bad = sys.argv[1], [], None, None
    def fill(smallest):
        size = 2**32
        while size >= smallest:
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2
    try:
        if kind == "assert":
            torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].sum().item()
        elif kind == "address":
            storage = torch._C._construct_storage_from_data_pointer(0x10, torch.device("cuda", 0), 4096)
            bad = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
            bad.fill_(1)
            torch.cuda.synchronize()
        elif kind == "cublas":
            x = torch.ones(512, 512, device="cuda")
            out = torch.empty_like(x)
            fill(2**20)
            torch.mm(x, x, out=out)
            torch.cuda.synchronize()
        elif kind == "memory":
            held.append(torch.empty(2**45, dtype=torch.uint8, device="cuda"))
    except Exception as e:
        error = e
    held.clear()
    try:
        torch.cuda.empty_cache()
        works = float((torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")).sum()) == 512.0
    except Exception:
        works = False
    says = {"type": type(error).__name__, "error": str(error).strip().splitlines()[0] if error else ""}
    print(json.dumps({**says, "lost": error is not None and device_lost(error), "works": works}), flush=True)
    import os; os._exit(0)  # CUDA's own clean-up fails after a fault.
"""


@pytest.mark.parametrize(("kind", "stays"), [("assert", True), ("address", True), ("cublas", False), ("memory", False)])
def test_a_device_is_lost_where_nothing_can_be_computed_any_more(
    kind: str, stays: bool, card: int, figure: Callable[..., None]
) -> None:
    result: dict[str, Any] = answer(FAULT, kind, timeout=60)
    figure(f"error {kind}", **result)
    assert result["error"], "the fault did not happen"
    assert result["works"] is not stays
    assert result["lost"] is stays
