"""What a recording may change in torch while it is open, and must have put back when it has ended."""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._dynamo import eval_frame
from torch.nn.modules import module
from torch.optim import optimizer
from torch.utils import _python_dispatch

from rooflight.sources.capture import phases

_KEYS = ("AutogradCPU", "AutogradCUDA", "AutogradXPU", "AutogradMeta", "CompositeImplicitAutograd", "CPU", "Meta")
_FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)


def torch_state() -> dict[str, Any]:
    """Everything, comparable with ``==``; of the calling thread where torch keeps it by thread."""
    state: dict[str, Any] = {name: getattr(_python_dispatch, name) for name in _FLAGS}
    for name in dir(module):
        if name.startswith("_global_") and isinstance(getattr(module, name), dict):
            state[name] = list(getattr(module, name))
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        state[name] = list(getattr(optimizer, name))
    for key in _KEYS:
        state[key] = torch._C._dispatch_has_kernel_for_dispatch_key("aten::scaled_dot_product_attention", key)
    state["dispatch modes"] = _len_torch_dispatch_stack()
    state["function modes"] = _len_torch_function_stack()
    state["stance"] = eval_frame._stance
    state["phases"] = list(phases._state.names)
    state["listeners"] = len(phases._state.listeners)
    propagation = sys.modules.get("torch.distributed.tensor._sharding_prop")
    state["DTensor's propagation"] = getattr(getattr(propagation, "ShardingPropagator", None), "_fake_mode_lock", None)
    state["grad"] = torch.is_grad_enabled()
    state["inference"] = torch.is_inference_mode_enabled()
    state["warnings"] = list(warnings.filters)
    state["Tensor.numpy"] = "numpy" in torch.Tensor.__dict__
    state["storage.resize_"] = "resize_" in torch.UntypedStorage.__dict__
    state["threads"] = Thread.start, ThreadPoolExecutor.submit
    state["module call"] = torch.nn.Module.__call__
    state["autocast"] = (torch.autocast.__enter__, torch.autocast.__exit__)
    state["casts"] = torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", "AutocastPrivateUse1")
    for asked in (torch._C._dispatch_tls_is_dispatch_key_included, torch._C._dispatch_tls_is_dispatch_key_excluded):
        state[asked.__name__] = asked("AutocastPrivateUse1")
    state["attention"] = torch.nn.functional.scaled_dot_product_attention
    return state
