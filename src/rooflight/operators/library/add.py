"""add: two tensors added, or a tensor and a number."""

from __future__ import annotations

from rooflight.operators.builders.rows_by_width import binary_operator
from rooflight.operators.registry import register

register(binary_operator("add", smart_share=3))
