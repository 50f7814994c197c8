"""Operators that a build with CUDA has kernels of, and a CPU build takes apart: autograd is to see them whole."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel

_KEPT: Final[list[Any]] = []
_SPLIT: Final = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Those with a composite kernel beside CUDA's: autograd would run the composite where there is no kernel of CUDA's."""


def install() -> None:
    """Register kernels that are never reached, since the mode answers before them."""
    library = torch.library.Library("aten", "IMPL")
    for name in _SPLIT:
        if hasattr(torch.ops.aten, name) and not has_kernel(f"aten::{name}", "CUDA"):
            library.impl(name, _never, "CUDA")
    _KEPT.append(library)


def _never(*_: Any, **__: Any) -> Any:
    raise RuntimeError("there is no GPU: this operator ran outside the virtual one")
