"""Mixed precision and optimizers as on a GPU that is not there.

torch casts for autocast in C++ where a tensor lies on the device that the program names: never a meta tensor, and no
tensor for ``torch.autocast("cuda")`` where there is no GPU, which torch turns off. Here the same casts are made in
Python, at the dispatch key of a backend that nobody has, so that autograd and a recording see them as they see torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import RLock
from typing import Any, Final

import torch
import torch.amp.grad_scaler
import torch.cuda.amp.common
from torch.amp.autocast_mode import autocast
from torch.optim import optimizer as torch_optimizer
from torch.utils._pytree import tree_leaves, tree_map

_KEY: Final = "AutocastPrivateUse1"
_EXCLUDED: Final = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))
_KINDS: Final = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}


# What torch does with the tensors of an op under autocast (ATen/autocast_mode.h and .cpp). Which ops have a rule is
# asked of the dispatcher; one that is not named here is computed in float32.
def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOWERED: Final = _names(
    """_convolution _convolution.deprecated conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding conv_tbc
    conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
    cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell
    rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention _addmm_activation mkldnn_rnn_layer
    _native_multi_head_attention"""
)
_PROMOTED: Final = {
    "cuda": _names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"),
    "cpu": _names("stack cat index_copy"),
}
_RESULT_IN_FLOAT32: Final = _names(  # the result is, where no dtype is asked for; the tensors are not cast
    """prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList"""
)
_NORMS: Final = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}

_lock = RLock()
_library: Any = None
_fallthrough: Any = None
_open: set[int] = set()  # ids of recordings, and of stretches that run as on a GPU
_gpu_stretches = 0
_without_gpu = 0
_theirs: dict[str, Callable[..., Any]] = {}
_casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of parameters, until the outermost context is left


def open_autocast(owner: object) -> None:
    """Have autocast cast meta tensors too, for each name of a device, until each owner has closed it."""
    with _lock:
        _open.add(id(owner))
        for name, ours in (("__enter__", _enter), ("__exit__", _exit)):
            if getattr(autocast, name) is not ours:
                _theirs[name] = getattr(autocast, name)
                setattr(autocast, name, ours)


def close_autocast(owner: object) -> None:
    """Undo ``open_autocast``, also half of it; the last owner to do so leaves torch as it was."""
    global _library
    with _lock:
        _open.discard(id(owner))
        if _open:
            return
        for name, ours in (("__enter__", _enter), ("__exit__", _exit)):
            if getattr(autocast, name) is ours:
                setattr(autocast, name, _theirs[name])
        if _library is not None:
            _library.reset()
            _library = None
        _casts.clear()


def contexts_without_gpu() -> int:
    """How many contexts of autocast for "cuda" were entered, while recordings were open, that torch had turned off."""
    return _without_gpu


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Have a program choose as on a GPU: ``torch.autocast("cuda")`` casts CPU and meta tensors, GradScaler scales
    and takes every gradient as finite, and optimizers take their steps in foreach kernels unless they are asked
    for others. Contexts, scalers and optimizers must be made inside. Does nothing where there is a GPU.

        with rooflight.as_on_gpu(), rooflight.record(model) as recording:
            step()
    """
    global _gpu_stretches
    if torch.cuda.is_available():
        yield
        return
    common, scaler = torch.cuda.amp.common, torch.amp.grad_scaler.GradScaler
    places: list[tuple[Any, str, Any]] = [
        (common, "amp_definitely_not_available", lambda: False),
        (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (torch_optimizer, "_get_foreach_kernels_supported_devices", _with_here(torch_optimizer)),
        (scaler, "_maybe_opt_step", _step),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in places]
    open_autocast(places)
    _gpu_stretches += 1
    try:
        for place, name, ours in places:
            setattr(place, name, ours)
        yield
    finally:
        for place, name, theirs in before:
            setattr(place, name, theirs)
        _gpu_stretches -= 1
        close_autocast(places)


def _with_here(module: Any) -> Callable[[], list[str]]:
    theirs = module._get_foreach_kernels_supported_devices
    return lambda: [*theirs(), "cpu", "meta"]


def _step(_: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    for found in state["found_inf_per_device"].values():
        if not found.is_meta:
            found.item()  # as the GPU's host waits for it
    return optimizer.step(*args, **kwargs)


def _enter(self: Any) -> Any:
    global _without_gpu
    entered = _theirs["__enter__"](self)
    _without_gpu += self.device == "cuda" and not self._enabled and not torch.cuda.is_available()
    with _lock:
        _route_casts()
    stack = self.__dict__.setdefault("_rooflight_was_cast", [])
    was = torch._C._dispatch_tls_is_dispatch_key_included, torch._C._dispatch_tls_is_dispatch_key_excluded
    stack.append((was[0](_KEY), was[1](_KEY)))  # Dynamo's guards compare them
    torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
    return entered


def _exit(self: Any, *error: Any) -> Any:
    if stack := self.__dict__.get("_rooflight_was_cast"):  # entered before a recording began, it has none
        included, excluded = stack.pop()
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, included)
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, excluded)
        if not included:
            _casts.clear()
    return _theirs["__exit__"](self, *error)


def _route_casts() -> None:
    global _library, _fallthrough
    if _fallthrough is None:  # stays: a context may outlive the recording that it began in
        fallthrough: Any = torch._C._dispatch_library("IMPL", "_", _KEY, __file__, 0)
        fallthrough.fallback(_KEY, torch.library.fallthrough_kernel, False)
        _fallthrough = fallthrough
    if _library is None:
        library: Any = torch._C._dispatch_library("IMPL", "aten", "", __file__, 0)
        for name in sorted(_ruled("cuda") | _ruled("cpu")):
            library.impl(name, _KEY, partial(_call, name), False)
        _library = library  # whole: an interrupt before it frees what was registered


@cache
def _ruled(kind: str) -> frozenset[str]:
    """The ops that autocast treats on a device: those with a kernel at its dispatch key."""
    every = (name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    key = _KINDS[kind]
    return frozenset(one for one in every if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{one}", key))


@cache
def _op(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _call(name: str, *args: Any, **kwargs: Any) -> Any:
    """An op in the dtype that autocast would choose where the program says it runs."""
    op = _op(name)
    with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
        kind = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
        if not torch.is_autocast_enabled(kind) or name not in _ruled(kind):
            return op(*args, **kwargs)
        lower = torch.get_autocast_dtype(kind)
        tensors = [each for each in tree_leaves((args, kwargs)) if _eligible(each, kind)]
        if name in _RESULT_IN_FLOAT32 or name in _NORMS:
            if not _eligible(args[0], kind):
                return op(*args, **kwargs)
            if name in _NORMS:
                return _op(f"norm.{_NORMS[name]}")(*args, **kwargs, dtype=torch.float32)
            position = [argument.name for argument in op._schema.arguments].index("dtype")
            asked = args[position] if position < len(args) else kwargs.get("dtype")
            if asked is None:
                args, kwargs = args[:position], {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)
        dtype = torch.float32
        if name in _LOWERED or (name in _PROMOTED[kind] and all(each.dtype != dtype for each in tensors)):
            dtype = lower
        chosen = {id(each): _cast(each, dtype, lower) for each in tensors}
        return op(*tree_map(lambda each: chosen.get(id(each), each), args), **kwargs)


def _eligible(value: Any, kind: str) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is torch.float64:
        return False
    place = value.device.type
    return place == "meta" or (kind == "cuda" and (place == "cuda" or (place == "cpu" and _gpu_stretches > 0)))


def _cast(tensor: torch.Tensor, dtype: torch.dtype, lower: torch.dtype) -> torch.Tensor:
    if tensor.dtype is dtype:
        return tensor
    once = tensor.requires_grad and tensor.is_leaf and not tensor._is_view() and dtype is lower
    if not (once and tensor.dtype is torch.float32 and torch.is_autocast_cache_enabled()):
        return tensor.to(dtype)
    known = _casts.get(id(tensor))
    if known is None or known[0] is not tensor:
        known = _casts[id(tensor)] = (tensor, tensor.to(dtype))
    return known[1]
