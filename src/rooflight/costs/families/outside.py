"""Memory that something outside torch's dispatcher filled: its size is known, what was computed is not."""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.signature import FAILED_MODULE, WRITTEN_OUTSIDE, OpSignature

formula = partial(registry.formula, error_group="outside")


@formula(WRITTEN_OUTSIDE)
def written_outside(op: OpSignature) -> OpCost | Uncosted:  # noqa: ARG001
    """A tensor that no recorded op wrote, and that a recorded op read or a module returned."""
    return Uncosted("written outside the dispatcher")


@formula(FAILED_MODULE)
def failed_module(op: OpSignature) -> OpCost | Uncosted:
    """A module whose kernels nobody saw, and whose module formula could not tell what they do."""
    return Uncosted(f"module formula failed: {op.attribute('reason')}")
