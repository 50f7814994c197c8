"""div: a tensor over another, or over a number."""

from __future__ import annotations

from rooflight.sampling.alike import binary_operator
from rooflight.sampling.registry import register

register(binary_operator("div"))
