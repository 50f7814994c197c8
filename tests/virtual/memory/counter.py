"""Count, without the tool, the most device memory a script has alive at once.

    python counter.py SCRIPT [--until N] [--growth]

Runs SCRIPT with every "cuda" device replaced by "meta", registers each storage
that an operator gives out (outermost dispatch only, so nothing inside an
operator), rounds it up to 512 bytes, and subtracts it when the storage dies.
Last line printed: {"peak_bytes": ..., "peak_step": ..., "end_bytes": ...};
peak_step is the script's loop variable `step` when the peak came (-1 before
the loop).  --until N keeps the peak only while step < N.  --growth adds
"at_step", the bytes alive at the first operator of each step.

Not counted: cuBLAS/cuDNN workspaces, the CUDA context, fragmentation.
"""

import argparse
import contextlib
import json
import os
import sys
import types
import warnings
import weakref

import torch
import torch._dynamo  # noqa: F401  (before the patches: it looks names up when imported)
import torch.nn.functional as F
import torch.utils._foreach_utils as foreach_utils
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

warnings.filterwarnings("ignore")
aten = torch.ops.aten
DEBUG = bool(os.environ.get("COUNTER_DEBUG"))
META = torch.device("meta")


class Ledger:
    def __init__(self):
        self.live, self.total, self.peak, self.peak_step = {}, 0, 0, -1
        self.script, self.until, self.at_step = None, None, {}

    def step(self):
        frame = sys._getframe(1)
        while frame:
            if frame.f_code.co_filename == self.script:
                value = frame.f_locals.get("step")
                if isinstance(value, int):
                    return value
            frame = frame.f_back
        return -1

    def note(self, tensor):
        if not isinstance(tensor, torch.Tensor) or tensor.device != META:
            return
        storage = tensor.untyped_storage()
        self.note_storage(storage)

    def note_storage(self, storage):
        key = storage._cdata
        size = -(-storage.nbytes() // 512) * 512
        if key not in self.live:
            weakref.finalize(storage, self.die, key).atexit = False
        self.total += size - self.live.get(key, 0)
        self.live[key] = size
        if self.total > self.peak:
            step = self.step()
            if self.until is None or step < self.until:
                self.peak, self.peak_step = self.total, step

    def die(self, key):
        self.total -= self.live.pop(key)


ledger = Ledger()


def emitted_by_engine():
    """The operator comes from the autograd engine, with no Python function between."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_name in ("_fn", "inner", "__torch_dispatch__"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


class Count(TorchDispatchMode):
    """Births of storages; and the few operators that meta tensors cannot do."""

    sole = None  # the counts of references that a sum nobody else holds has here
    calibrating = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is aten.add.Tensor and emitted_by_engine():
            # The engine adds gradients in place where nobody else holds the
            # sum; with any dispatch mode on it does not, so do it for it.
            refs = (
                args[0]._use_count(),
                sys.getrefcount(args[0]),
                torch._C._storage_Use_Count(args[0].untyped_storage()._cdata),
            )
            if self.calibrating is not None:
                self.calibrating.append(refs)
            if DEBUG:
                print('engine adds', refs, self.sole, tuple(args[0].shape))
            if refs == self.sole and args[0].shape == args[1].shape and args[0].dtype == args[1].dtype:
                return args[0]
        if ledger.script:
            for leaf in tree_leaves((args, kwargs)):
                ledger.note(leaf)
            step = ledger.step()
            if step >= 0:
                ledger.at_step.setdefault(step, ledger.total)
        result = self.do(func, args, kwargs)
        if ledger.script:
            for leaf in tree_leaves(result):
                ledger.note(leaf)
            for leaf in tree_leaves((args, kwargs)):  # resized in place
                ledger.note(leaf)
        return result

    def do(self, func, args, kwargs):
        name = func.overloadpacket.__name__
        if args and isinstance(args[0], torch.Tensor):
            first = args[0]
            if name == "_local_scalar_dense" and first.device == META:
                if first.dtype == torch.bool:
                    return True
                return 1.0 if first.is_floating_point() else 1
            if name == "_to_copy" and first.device == META:
                device = kwargs.get("device")
                if device is not None and device.type == "cpu":
                    return torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
            if name == "copy_" and first.device != META and args[1].device == META:
                return first
        if name.startswith("_fused_") and name.rstrip("_")[7:] in ("adam", "adamw", "sgd", "adagrad"):
            return None
        if name == "equal":
            return True
        return func(*args, **kwargs)


def mapped(value):
    if isinstance(value, torch.device) and value.type == "cuda":
        return META
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return META
    return value


HALF = (torch.float16, torch.bfloat16)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """What CUDA would choose: flash where it can, the memory-efficient kernel otherwise."""
    if enable_gqa and k.shape[1] != q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    if attn_mask is None and q.dtype in HALF:
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*q.shape[:3], k.shape[2])
    grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, grad, dropout_p, is_causal, scale=scale)[0]


class ToMeta(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {k: mapped(v) for k, v in (kwargs or {}).items() if k != "pin_memory"}
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory, torch.Tensor.record_stream, torch.Tensor.is_pinned):
            if func is torch.Tensor.cuda:
                return args[0].to(META)
            return args[0] if func is torch.Tensor.pin_memory else None
        if func is torch.Tensor.is_cuda.__get__:
            return args[0].device == META
        if func in (torch.Tensor.numpy, torch.Tensor.tolist) and args[0].device == META:
            args = (torch.zeros(args[0].shape, dtype=args[0].dtype),)
        if func is F.dropout:
            return self.dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return attention(*args, **kwargs)
        return func(*[mapped(a) for a in args], **kwargs)

    @staticmethod
    def dropout(input, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return input
        return torch.native_dropout(input, p, True)[0]


LOWER = {
    F.linear,
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.mm,
    torch.Tensor.mm,
    torch.bmm,
    torch.Tensor.bmm,
    torch.addmm,
    torch.baddbmm,
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    F.conv1d,
    F.conv2d,
    torch.einsum,
    F.scaled_dot_product_attention,
}
HIGHER = {
    F.softmax,
    torch.softmax,
    torch.Tensor.softmax,
    F.log_softmax,
    torch.log_softmax,
    torch.Tensor.log_softmax,
    F.cross_entropy,
    F.nll_loss,
    F.mse_loss,
    F.l1_loss,
    F.layer_norm,
    F.group_norm,
    torch.Tensor.exp,
    torch.exp,
    torch.log,
    torch.Tensor.log,
    torch.pow,
    torch.Tensor.pow,
    F.softplus,
    torch.logsumexp,
    F.kl_div,
    F.cosine_similarity,
    torch.norm,
}


class AutocastMode(TorchFunctionMode):
    def __init__(self, outer):
        self.outer = outer

    def cast(self, value, dtype):
        if not isinstance(value, torch.Tensor) or value.device != META or not value.is_floating_point():
            return value
        if value.dtype == dtype:
            return value
        if value.is_leaf and value.requires_grad and dtype != torch.float32 and value._base is None:
            cache = Autocast.cache
            if not torch.is_grad_enabled() and id(value) not in cache:
                pass  # CUDA's autocast caches here too
            if id(value) not in cache:
                cache[id(value)] = (value, value.to(dtype))
            return cache[id(value)][1]
        return value.to(dtype)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.outer.enabled and (func in LOWER or func in HIGHER):
            dtype = self.outer.dtype if func in LOWER else torch.float32
            args = tree_map(lambda v: self.cast(v, dtype), args)
            kwargs = tree_map(lambda v: self.cast(v, dtype), kwargs)
        return func(*args, **kwargs)


class Autocast(contextlib.ContextDecorator):
    cache, depth = {}, 0

    def __init__(self, device_type="cuda", dtype=None, enabled=True, cache_enabled=None):
        self.dtype, self.enabled, self.modes = dtype or torch.float16, enabled and device_type == "cuda", []

    def __enter__(self):
        self.modes.append(AutocastMode(self))
        self.modes[-1].__enter__()
        Autocast.depth += 1
        return self

    def __exit__(self, *exc):
        self.modes.pop().__exit__(*exc)
        Autocast.depth -= 1
        if not Autocast.depth:
            Autocast.cache.clear()


class Anything:
    """Streams and events."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: 1.0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass


def backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)


def patch():
    cuda = torch.cuda
    nothing = lambda *args, **kwargs: None  # noqa: E731
    for name in (
        "synchronize",
        "empty_cache",
        "set_device",
        "manual_seed",
        "manual_seed_all",
        "init",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
        "reset_accumulated_memory_stats",
    ):
        setattr(cuda, name, nothing)
    cuda.is_available = cuda.is_bf16_supported = lambda *args, **kwargs: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.is_current_stream_capturing = lambda: False
    cuda.get_device_name = lambda *args: "NVIDIA H100 80GB HBM3"
    cuda.get_device_capability = lambda *args: (9, 0)
    cuda.memory_allocated = cuda.memory_reserved = lambda *args: ledger.total
    cuda.max_memory_allocated = cuda.max_memory_reserved = lambda *args: ledger.peak
    cuda.mem_get_info = lambda *args: (80 * 2**30 - ledger.total, 80 * 2**30)
    cuda.Stream = cuda.Event = Anything
    cuda.stream = cuda.current_stream = cuda.default_stream = cuda.device = Anything
    torch.autocast = torch.amp.autocast = torch.amp.autocast_mode.autocast = Autocast
    cuda.amp.autocast = lambda enabled=True, dtype=None, **kw: Autocast("cuda", dtype, enabled)
    torch.Tensor.backward = backward
    default = torch.set_default_device
    torch.set_default_device = lambda device: default(mapped(device))
    supported = foreach_utils._get_foreach_kernels_supported_devices
    fused = foreach_utils._get_fused_kernels_supported_devices
    for module in map(sys.modules.get, ("torch.utils._foreach_utils", "torch.optim.optimizer", "torch.optim.swa_utils")):
        module._get_foreach_kernels_supported_devices = lambda: [*supported(), "meta"]
        module._get_fused_kernels_supported_devices = lambda: [*fused(), "meta"]
    resize = torch.UntypedStorage.resize_

    def resize_(self, size):
        result = resize(self, size)
        if self.device == META:
            ledger.note_storage(self)
        return result

    torch.UntypedStorage.resize_ = resize_


def calibrate():
    """The references that the engine's sole sum of gradients has as it reaches us."""
    with Count() as mode:
        Count.calibrating = []
        ones = torch.ones(4, 4, device="meta", requires_grad=True)
        h = ones * 2
        torch.autograd.backward((h + torch.tanh(h * 3)).sigmoid().mean())
        Count.sole = Count.calibrating[-1]
        Count.calibrating = None
    assert mode is not None and len(Count.sole) == 3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("script")
    parser.add_argument("--until", type=int)
    parser.add_argument("--growth", action="store_true")
    options = parser.parse_args()
    patch()
    calibrate()
    module = types.ModuleType("__main__")
    module.__file__ = options.script
    sys.modules["__main__"], sys.argv = module, [options.script]
    with open(options.script) as file:
        code = compile(file.read(), options.script, "exec")
    ledger.script, ledger.until = options.script, options.until
    with Count(), ToMeta():
        exec(code, module.__dict__)
    ledger.script = None
    answer = {"peak_bytes": ledger.peak, "peak_step": ledger.peak_step, "end_bytes": ledger.total}
    if options.growth:
        answer["at_step"] = list(ledger.at_step.values())
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
