"""add: two tensors added, or a tensor and a number."""

from __future__ import annotations

from rooflight.sampling.alike import binary_operator
from rooflight.sampling.registry import register

register(binary_operator("add"))
