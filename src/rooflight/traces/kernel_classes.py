"""Whether the name of a kernel can be that of a kernel of an op, as far as names tell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_CLASSES: Final = (
    (  # a product of matrices
        re.compile(r"gemm|Cijk_|nvjet|xmma|cublas|gemv|wvSplitK|^bmm_|skinny", re.IGNORECASE),
        re.compile(r"mm|linear|matmul|einsum|gemm|product|conv|moe|expert|att|mv|dot|mla|mlp", re.IGNORECASE),
    ),
    (
        re.compile(r"flash_fwd|fmha|paged_attention|_attention_|attn_fwd|FlashAttn", re.IGNORECASE),
        re.compile(r"att|flash|fmha|mha|mla|sdpa|paged|pa_fwd|fwd|triton", re.IGNORECASE),
    ),
    (
        re.compile(r"rotary|rope", re.IGNORECASE),
        re.compile(r"rot|rope|qk|att|triton", re.IGNORECASE),
    ),
    (
        re.compile(r"(?:rms|layer)_?norm", re.IGNORECASE),
        re.compile(r"norm|triton|reduce", re.IGNORECASE),
    ),
    (
        re.compile(r"^(?:void )?at::native::"),
        re.compile(r"^(?:aten|fbgemm|prims|torchvision)::|_foreach|moe|expert|att", re.IGNORECASE),
    ),
)
"""What names of kernels show, and what the name of an op around them has then."""


def contradicts(kernel: str, ops: Iterable[str]) -> bool:
    """Whether a kernel is of a class that none of the ops around its launch is."""
    around = list(ops)
    if not around:
        return False
    return any(shown.search(kernel) and not any(fits.search(op) for op in around) for shown, fits in _CLASSES)
