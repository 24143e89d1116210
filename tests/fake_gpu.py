"""A simulated GPU: tensors "on cuda" lie on the CPU, and behave as on another device.

Operations on tensors of both devices raise, CPU generators cannot draw on the GPU, numpy cannot read it, and copies
between the two are counted. The arithmetic is the CPU's, so results must have the same bits as without it.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from raydiff.models.schedules import level_table

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
aten, functorch = torch.ops.aten, torch._C._functorch
MAY_MIX = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
}
"""Operations that take tensors of both devices, as on a GPU; some of them copy."""


class FakeGpu:
    """Which storages are on it, and counts of its operations."""

    def __init__(self) -> None:
        self._held: dict[int, StorageWeakRef] = {}  # A weak reference keeps the number from being reused.
        self.creates_here = False
        self._crossing: bool | None = None
        self.counts: Counter[str] = Counter()
        """up, down: copies to and from the device; ops: operations on it."""

    def has(self, x: Tensor) -> bool:
        """Whether the tensor is on it."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return _bare(x).untyped_storage()._cdata in self._held

    def put(self, x: Tensor) -> Tensor:
        """Declare the tensor to be on it."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            storage = _bare(x).untyped_storage()
            self._held.setdefault(storage._cdata, StorageWeakRef(storage))
        return x

    def crossing(self, x: Tensor, wanted: bool) -> Tensor:
        """A copy on the GPU if `wanted`, else on the CPU."""
        self._crossing = wanted
        try:
            return x.clone()
        finally:
            self._crossing = None

    @contextlib.contextmanager
    def within(self, on_gpu: bool) -> Iterator[None]:
        """Within, tensors that a call creates without inputs are on the GPU if `on_gpu`."""
        before, self.creates_here = self.creates_here, on_gpu
        try:
            yield
        finally:
            self.creates_here = before

    def device_of(self, x: Tensor) -> torch.device:
        """The simulated device of a tensor."""
        return GPU if self.has(x) else CPU

    @contextlib.contextmanager
    def on(self) -> Iterator["FakeGpu"]:
        """Within, this thread has the GPU."""
        with _Functions(self), _Operations(self):
            yield self


def _bare(x: Tensor) -> Tensor:
    """The tensor inside the wrappers of vmap and grad."""
    while (
        functorch.is_gradtrackingtensor(x) or functorch.is_batchedtensor(x) or functorch.is_functorch_wrapped_tensor(x)
    ):
        x = functorch.get_unwrapped(x)
    return x


class _Functions(TorchFunctionMode):
    """Public functions: devices of tensors, and moves between devices."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:
            return self.gpu.device_of(args[0])
        if func == Tensor.is_cuda.__get__:
            return self.gpu.has(args[0])
        if func is Tensor.numpy and self.gpu.has(args[0]):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if func is Tensor.cpu:
            return self._moved(args[0], CPU)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == "cuda":
            if kwargs.get("generator") is not None:
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
            created = func(*args, **{**kwargs, "device": "cpu"})
            self.gpu.counts["up"] += func in (torch.tensor, torch.as_tensor)
            return self.gpu.put(created)
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        with self.gpu.within(any(map(self.gpu.has, inputs))):
            return func(*args, **kwargs)

    def _to(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        rest = list(args)
        where = kwargs.pop("device", None)
        if rest and isinstance(rest[0], (str, torch.device)):
            where = rest.pop(0)
        if where is None and rest and isinstance(rest[0], Tensor):
            where = self.gpu.device_of(rest[0])
            rest[0] = rest[0].dtype
        kwargs |= {k: v for k, v in zip(("dtype", "non_blocking", "copy"), rest, strict=False) if v is not None}
        return Tensor.to(x, **kwargs) if where is None else self._moved(x, torch.device(where), **kwargs)

    def _moved(self, x: Tensor, where: torch.device, *, copy: bool = False, **more: Any) -> Any:
        on_gpu, wanted = self.gpu.has(x), where.type == "cuda"
        if on_gpu == wanted:
            return Tensor.to(x, copy=copy, **more)
        self.gpu.counts["up" if wanted else "down"] += 1
        within = _bare(x) is not x  # Its gradient stays where it is.
        moved = self.gpu.crossing(x, wanted) if within or not x.requires_grad else _Crossing.apply(self.gpu, x, wanted)
        return Tensor.to(moved, **more) if more else moved


class _Crossing(torch.autograd.Function):
    """A copy to the other device; its gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, gpu: FakeGpu, x: Tensor, wanted: bool) -> Tensor:
        ctx.gpu, ctx.wanted = gpu, wanted
        return gpu.crossing(x, wanted)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, ctx.gpu.crossing(gradient, not ctx.wanted), None


class _Operations(TorchDispatchMode):
    """Operations: all inputs on one device, and the outputs too."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_gpu = [self.gpu.has(x) for x in tensors]
        if func in MAY_MIX:
            self._check_mixed(func, on_gpu)
        elif any(on_gpu) and not all(on or x.dim() == 0 for on, x in zip(on_gpu, tensors, strict=True)):
            raise RuntimeError(f"Expected all tensors to be on the same device, cuda:0 and cpu: {func}")
        out = func(*args, **kwargs)
        if func is aten.clone.default and self.gpu._crossing is not None:
            return self.gpu.put(out) if self.gpu._crossing else out
        if not tensors and self.gpu.creates_here:
            return tree_map_only(Tensor, self.gpu.put, out)
        if not any(on_gpu) or (func in MAY_MIX and not on_gpu[0]):
            return out
        self.gpu.counts["ops"] += 1
        return tree_map_only(Tensor, self.gpu.put, out)

    def _check_mixed(self, func: Any, on_gpu: list[bool]) -> None:
        if func is aten.copy_.default and on_gpu[0] != on_gpu[1]:
            self.gpu.counts["up" if on_gpu[0] else "down"] += 1
        elif any(on_gpu) and not on_gpu[0]:
            raise RuntimeError(f"indices should be on cpu: {func}")
        elif func is not aten.copy_.default:
            self.gpu.counts["up"] += on_gpu.count(False) if on_gpu[0] else 0


@contextlib.contextmanager
def attached() -> Iterator[FakeGpu]:
    """Within, this process has a GPU, in this thread and those that start."""
    gpu, run, autocast = FakeGpu(), threading.Thread.run, torch.autocast

    def with_it(thread: threading.Thread) -> None:
        with gpu.on():
            run(thread)

    def cast(kind: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu", *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, gpu.on():
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch, "autocast", cast)
        patch.setattr(threading.Thread, "run", with_it)
        level_table.cache_clear()  # What another one held lies on the CPU for this one.
        yield gpu
