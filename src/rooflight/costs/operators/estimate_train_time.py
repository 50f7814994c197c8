"""What estimate-train-time calls operators, parameters, times and precisions in its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rooflight.costs.operators.operator import PAIR, STEP

TIMES: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {PAIR: ("F_dur(us)", "B_dur(us)"), STEP: ("dur(us)",)}
"""Columns of times, by an operator's directions."""
OPERATORS: Final = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
"""Our operators by its names, where these differ."""
PARAMETERS: Final = {"shape": "elements", "GPUsPerNode": "gpus_per_node"}
"""Our parameters by its names, where these differ."""
_SHORT: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}


def short_precision(dtype: str) -> str:
    """Its name of a dtype: ``fp16`` for ``float16``."""
    return _SHORT.get(dtype, dtype)
