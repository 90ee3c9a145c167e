"""Two devices that are not there: all is computed on the CPU, and every tensor knows on which device it would lie.

`split(lm, mode, first)` puts the parameters of a model on virtual GPUs, as `device_map` does, with hooks that move a
block's arguments to it, as accelerate's do. Inside `VirtualDevices()` a tensor's `device` says where it would be, `to`
moves it, and an operation on tensors of two devices raises the error that CUDA raises. What CUDA allows is allowed:
numbers of no dimension, and positions on the CPU that index a tensor elsewhere.
"""

from collections.abc import Mapping

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

CPU = torch.device("cpu")
GPUS = tuple(torch.device("xpu", n) for n in range(2))  # not cuda: nothing of CUDA itself is called
INDEXING = {"__getitem__", "__setitem__", "index_put", "index_put_"}
# What takes tensors of several devices: copies, gradients, and the steps of optimisers, which sort them by device.
ACROSS = {"copy_", "grad", "backward", "__get__", "__set__", "_fused_adam_", "_fused_adamw_"}
ACROSS |= {"_has_compatible_shallow_copy_type"}
# What returns no tensor on the device of its input.
TO_CPU = {"cpu", "numpy", "tolist", "item"}


def tensors_in(values):
    "All tensors in lists, tuples and dicts."
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping):
        for x in values.values():
            yield from tensors_in(x)
    elif isinstance(values, (list, tuple)):
        for x in values:
            yield from tensors_in(x)


class VirtualDevices(TorchFunctionMode):
    "Notes on which device each tensor would lie."

    def __init__(self):
        super().__init__()
        self.places, self.moves, self.refused = WeakTensorKeyDictionary(), 0, 0

    def of(self, t: torch.Tensor) -> torch.device:
        while t is not None:
            if t in self.places:
                return self.places[t]
            t = t._base  # a view lies where its base lies
        return CPU

    def put(self, values, device):
        for t in tensors_in(values):
            self.places[t] = device

    def moved(self, t: torch.Tensor, device, *args, **kwargs):
        with torch._C.DisableTorchFunction():
            same = self.of(t) == device
            out = t.to(*args, **kwargs) if args or kwargs else t
            out = out if same or out is not t else out.clone()
        self.moves += not same
        self.put(out, device)
        return out

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", str(func))
        if name == "__get__" and getattr(func, "__self__", None) is torch.Tensor.device:
            with torch._C.DisableTorchFunction():
                return self.of(args[0])
        if name in ("to", "cuda", "cpu"):
            return self.move(name, args, kwargs)
        return self.compute(func, name, args, kwargs)

    def move(self, name, args, kwargs):
        t, rest, device = args[0], list(args[1:]), kwargs.pop("device", None)
        if name == "cpu":
            return self.moved(t, CPU)
        if name == "cuda":
            return self.moved(t, GPUS[0])
        for x in rest[:1]:
            if x is None or isinstance(x, (str, torch.device)):
                device, rest = x, []
                kwargs |= {k: v for k, v in zip(("dtype", "non_blocking", "copy"), args[2:]) if v is not None}
            elif isinstance(x, torch.Tensor):
                with torch._C.DisableTorchFunction():
                    device = self.of(rest.pop(0))
                    kwargs["dtype"] = x.dtype
        with torch._C.DisableTorchFunction():
            device = self.of(t) if device is None else torch.device(device)
        return self.moved(t, device, *rest, **kwargs)

    def compute(self, func, name, args, kwargs):
        device = kwargs.get("device")
        if device is not None and torch.device(device) in GPUS:
            kwargs["device"] = CPU
        with torch._C.DisableTorchFunction():
            given = [t for t in tensors_in([args, kwargs]) if t.dim() > 0]
            first = given[:1] if name in INDEXING else given
            places = {self.of(t) for t in first}
            if name in INDEXING:  # positions may lie on the CPU
                places |= {self.of(t) for t in given[1:]} - {CPU}
            place = self.target(name, given, places, device)
            out = func(*args, **kwargs)
            if name == "grad" and "autograd" in getattr(func, "__module__", ""):
                inputs = args[1] if len(args) > 1 else kwargs["inputs"]
                for t, g in zip(tensors_in([inputs]), tensors_in([out])):
                    self.put(g, self.of(t))
            elif name == "__set__" and isinstance(args[1], torch.Tensor):  # `p.data = …`: also the device is another
                self.put(args[0], self.of(args[1]))
            elif name == "__get__":  # `p.data`, `t.T`
                self.put([t for t in tensors_in([out]) if t is not args[0]], self.of(args[0]))
            elif name not in TO_CPU:
                for t in tensors_in([out]):
                    if t._base is None or self.of(t) != place:
                        self.put(t, place)
        return out

    def target(self, name, given, places, device):
        "Where the result lies; an error where CUDA would raise one."
        if device is not None:
            return torch.device(device)
        if len(places) > 1 and name not in ACROSS:
            self.refused += 1
            where = ", ".join(sorted(map(str, places)))
            raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {where}")
        if name == "copy_":
            return self.of(given[0]) if given else CPU
        return next(iter(places), CPU)


def split(lm, mode: VirtualDevices, first: int):
    "The embeddings and the first layers on the first device, the rest on the second."
    blocks = [lm.module("block", n) for n in range(lm.layers)]
    below = {id(p) for b in blocks[:first] for p in b.parameters()}
    below |= {id(p) for p in lm.model.get_input_embeddings().parameters()}
    for p in (*lm.model.parameters(), *lm.model.buffers()):
        mode.places[p] = GPUS[0] if id(p) in below else GPUS[1]
    for buffer in lm.base.buffers():  # rotary tables serve all blocks; accelerate's hooks move what they make
        mode.places[buffer] = GPUS[0]

    def send(device):
        def move(values):
            if isinstance(values, torch.Tensor):
                return values.to(device)
            if isinstance(values, dict):
                return {k: move(v) for k, v in values.items()}
            return type(values)(map(move, values)) if type(values) in (list, tuple) else values

        return lambda module, args, kwargs: (move(args), move(kwargs))

    hooks = [b.register_forward_pre_hook(send(GPUS[n >= first]), with_kwargs=True) for n, b in enumerate(blocks)]
    within = {id(m) for b in blocks for m in b.modules()}
    for m in lm.base.modules():
        own = next(m.parameters(recurse=False), None)
        if own is not None and id(m) not in within:  # embeddings, the last norm, the head
            hooks.append(m.register_forward_pre_hook(send(mode.of(own)), with_kwargs=True))
    return hooks
