"""Number formats by the name that torch prints after ``torch.``, so that no room needs torch to know a size.

And torch's settings for products of float32 numbers, as a session's environment keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAMES_BY_BYTES: Final[dict[int, str]] = {
    16: "complex128",
    8: "float64 complex64 int64 uint64",
    4: "float32 complex32 int32 uint32 qint32",
    2: "float16 bfloat16 int16 uint16 bits16",
    1: "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu int8 uint8 bool qint8 quint8 bits8 "
    # one byte holds several numbers, or leaves a part of it unused; shapes count bytes
    "float4_e2m1fn_x2 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 int1 int2 int3 int4 int5 int6 int7 "
    "uint1 uint2 uint3 uint4 uint5 uint6 uint7",
}
ITEM_BYTES: Final[dict[str, int]] = {name: size for size, names in _NAMES_BY_BYTES.items() for name in names.split()}

_SHORT_NAMES: Final[dict[str, str]] = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "tf32": "tfloat32",
    "fp16": "float16",
    "fp16acc": "float16_accumulate",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp4": "float4_e2m1fn_x2",
}

SHORT_PRECISIONS: Final[dict[str, str]] = {
    "float64": "fp64",
    "float32": "fp32",
    "tfloat32": "tf32",
    "float16": "fp16",
    "float16_accumulate": "fp16acc",
    "bfloat16": "bf16",
    "float8": "fp8",
    "int8": "int8",
    "float4": "fp4",
}
"""The short name of each of the PRECISIONS. "float16_accumulate": float16 products whose sums are float16 too."""

# The peaks that a device can have. Every float8 layout runs at one rate, and so on.
PRECISIONS: Final[tuple[str, ...]] = tuple(SHORT_PRECISIONS)

FLOAT_BITS: Final[dict[str, int]] = {
    "float64": 64,
    "float32": 32,
    "tfloat32": 19,
    "float16": 16,
    "float16_accumulate": 16,
    "bfloat16": 16,
    "float8": 8,
    "float4": 4,
}
"""Bits per number, for each of the PRECISIONS that are floats."""

_STORED_AS: Final[dict[str, str]] = {
    "tfloat32": "fp32, whose products devices may be set to do in tf32",
    "float16_accumulate": "fp16, whose sums devices may be set to keep in fp16",
    "float8": "fp8 or a full torch name",
    "float4": "fp4 or a full torch name",
}


def dtype_name(text: str) -> str:
    """The full name of a dtype given as ``bf16``, ``torch.bfloat16`` or ``bfloat16``.

    Raises ValueError when no such format is known.
    """
    name = text.removeprefix("torch.").lower()
    name = _SHORT_NAMES.get(name, name)
    if name not in ITEM_BYTES and name not in PRECISIONS:
        known = ", ".join(sorted(_SHORT_NAMES))
        raise ValueError(f'unknown dtype "{text}": use one of {known} or a full torch name')
    return name


def tensor_dtype(text: str) -> str:
    """The full name of a dtype that tensors can have, given as ``dtype_name`` takes it.

    Raises ValueError when no such dtype is known, and for a precision that only arithmetic has, such as ``tf32``.
    """
    name = dtype_name(text)
    if name not in ITEM_BYTES:
        raise ValueError(f"{text} is a precision of arithmetic, no dtype of tensors: give {_STORED_AS[name]}")
    return name


def item_bytes(dtype: str) -> int:
    """Bytes of one element. Raises ValueError for an unknown dtype."""
    try:
        return ITEM_BYTES[dtype]
    except KeyError:
        raise ValueError(f'unknown dtype "{dtype}": its size is not known') from None


def precision_of(dtype: str) -> str | None:
    """The one of the PRECISIONS whose peak bounds arithmetic on ``dtype``; None if there is none (int64, bool).

    Complex numbers run on the unit of their real part. float32 is "float32" here; whether the TF32 unit may be used
    instead is a setting of the run, which ``roofline.float32`` reads.
    """
    if dtype in PRECISIONS:
        return dtype
    if dtype.startswith("float8"):
        return "float8"
    if dtype.startswith("float4"):
        return "float4"
    if dtype in ("uint8", "qint8", "quint8"):
        return "int8"
    return {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(dtype)


FLOAT32_DEFAULTS: Final[Mapping[str, str]] = {
    "cuda.matmul": "ieee",
    "cudnn.conv": "tf32",
    "cudnn.rnn": "tf32",
    "mkldnn.matmul": "ieee",
    "mkldnn.conv": "ieee",
    "mkldnn.rnn": "ieee",
}
"""Torch 2.11's defaults, by library and kind of op: "ieee", "tf32" or "bf16". By default cuDNN may use TF32, and cuBLAS
may not (https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere)."""

FLOAT32_PRECISIONS: Final[Mapping[str, str]] = {"ieee": "float32", "tf32": "tfloat32", "bf16": "bfloat16"}
"""The precision whose peak each value admits."""


FLOAT16_SUMS: Final = "torch.backends.cuda.matmul.allow_fp16_accumulation"
"""The setting, and entry of the environment, by which cuBLAS may add float16 products in float16; "False" if absent."""


def float32_fact(library: str) -> str:
    """The name of the environment's entry, which is also the name of torch's setting."""
    return f"torch.backends.{library}.fp32_precision"


def float32_setting(environment: Mapping[str, str], library: str) -> str:
    """The session's setting for ``"cudnn.conv"`` and the like; torch's default where the environment has none."""
    return environment.get(float32_fact(library), FLOAT32_DEFAULTS[library])
