"""The remedies: when each applies, what it saves, how to do it and how to verify it. A rule reads ``Facts`` and yields
drafts; those that need the same evidence share a file.
"""

from typing import Final

from rooflight.diagnosis.remedies import (
    algebra,
    allocating,
    attention,
    compiled,
    exchange,
    kernels,
    layouts,
    loading,
    loops,
    optimizer,
    own_lines,
    padding,
    precision,
    size,
    transfers,
    waiting,
    waste,
)

RULES: Final = (
    *loading.RULES,
    *own_lines.RULES,
    *waiting.RULES,
    *waste.RULES,
    *algebra.RULES,
    *loops.RULES,
    *attention.RULES,
    *padding.RULES,
    *precision.RULES,
    *optimizer.RULES,
    *exchange.RULES,
    *transfers.RULES,
    *compiled.RULES,
    *allocating.RULES,
    *layouts.RULES,
    *kernels.RULES,
    *size.RULES,
)
