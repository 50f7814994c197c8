"""Dtypes of a profile that has sizes alone: the narrowest float type in the names of an op's kernels."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from rooflight.sources.traces.file.trace import UNKNOWN, Trace, nested

_FLOATS: Final = (
    ("c10::BFloat16", re.compile(r"bf16|bfloat16|nvjet_(?:sm\d+_)?t|b16816", re.IGNORECASE)),
    (
        "c10::Half",
        re.compile(r"c10::Half|__half|fp16|(?<![bt])f16|hgemm|h884|h1688|nvjet_(?:sm\d+_)?h", re.IGNORECASE),
    ),
    ("float", re.compile(r"\bfloat\b|f32|sgemm|s1688(?!6)|scudnn", re.IGNORECASE)),
    ("double", re.compile(r"\bdouble\b|f64|dgemm", re.IGNORECASE)),
)
"""C++'s float types as the names of kernels have them, the narrowest first."""

DTYPES_OF_KERNELS: Final = (
    "The profile notes no dtypes: of each op the narrowest float type in the names of its kernels is taken for all of "
    "its tensors, so that its bound may be lower than it is."
)


def with_dtypes(trace: Trace) -> Trace:
    """The trace with a dtype for each tensor of the ops of which it has sizes alone."""
    kernels: dict[int, set[int]] = defaultdict(set)
    nesting = nested(trace)
    op_of = dict(zip(trace.calls.correlation.tolist(), nesting.call_op.tolist(), strict=True))
    for correlation, kernel in zip(trace.work.correlation.tolist(), trace.work.name.tolist(), strict=True):
        for op in nesting.around(op_of.get(correlation, UNKNOWN)):
            kernels[op].add(kernel)
    changed = {}
    for op, found in kernels.items():
        args = trace.arguments[trace.ops.args[op]]
        kind = float_type(trace.names[kernel] for kernel in found)
        if args.dims and not args.types and kind:
            types = [kind if _is_tensor(dims) else "" for dims in json.loads(args.dims)]
            changed[op] = replace(args, types=json.dumps(types, separators=(",", ":")).encode())
    return replace(trace.with_arguments(changed), guesses_dtypes=bool(changed))


def _is_tensor(dims: Any) -> bool:
    return isinstance(dims, list) and bool(dims) and all(isinstance(size, int) for size in dims)


def float_type(kernels: Iterable[str]) -> str:
    """The narrowest of C++'s float types that the names of kernels have, empty where they have none."""
    names = list(kernels)
    return next((kind for kind, pattern in _FLOATS if any(map(pattern.search, names))), "")
