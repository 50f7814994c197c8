"""Torch's settings for products of float32 numbers, as a session's environment keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DEFAULTS: Final[Mapping[str, str]] = {
    "cuda.matmul": "ieee",
    "cudnn.conv": "tf32",
    "cudnn.rnn": "tf32",
    "mkldnn.matmul": "ieee",
    "mkldnn.conv": "ieee",
    "mkldnn.rnn": "ieee",
}
"""Torch 2.11's defaults, by library and kind of op: "ieee", "tf32" or "bf16". By default cuDNN may use TF32, and cuBLAS
may not (https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere)."""

PRECISIONS: Final[Mapping[str, str]] = {"ieee": "float32", "tf32": "tfloat32", "bf16": "bfloat16"}
"""The precision whose peak each value admits."""


def fact_name(library: str) -> str:
    """The name of the environment's entry, which is also the name of torch's setting."""
    return f"torch.backends.{library}.fp32_precision"


def setting_of(environment: Mapping[str, str], library: str) -> str:
    """The session's setting for ``"cudnn.conv"`` and the like; torch's default where the environment has none."""
    return environment.get(fact_name(library), DEFAULTS[library])
