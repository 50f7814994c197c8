"""pow: a tensor to the power of another, or of a number."""

from __future__ import annotations

from rooflight.sampling.alike import binary_operator
from rooflight.sampling.registry import register

register(binary_operator("pow", "exponent"))
