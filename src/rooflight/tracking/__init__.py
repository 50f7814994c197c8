"""Follows a training loop: how far each iteration is from the speed of light.

Two instruments, never on the same step. A recording shows what a step does: the first two steps, and later ones whose
cheap facts (calls of models with shapes, backward passes, optimizer steps, phases) no recorded step had, within 3 %
of the loop's time. Spans show how long it took. Errors of the tracker do not reach the program: hooks are removed,
one line is logged.

The names of the SOL estimator are here too. Trainers' callbacks are in ``rooflight.tracking.callbacks.hf`` and
``.lightning``, which import their framework.
"""

from typing import TYPE_CHECKING

from rooflight.records.package import lazy_exports

if TYPE_CHECKING:
    from rooflight.capture.phases import sol_nvtx_range as sol_nvtx_range
    from rooflight.tracking.functions import FunctionalPatcher as FunctionalPatcher
    from rooflight.tracking.layers import LayerSOLHooks as LayerSOLHooks
    from rooflight.tracking.layers import sol_profile as sol_profile
    from rooflight.tracking.loop import Tracker as Tracker
    from rooflight.tracking.loop import add_sol_arguments as add_sol_arguments
    from rooflight.tracking.loop import initialize_sol as initialize_sol
    from rooflight.tracking.loop import log_training_sol as log_training_sol
    from rooflight.tracking.loop import shutdown_sol as shutdown_sol
    from rooflight.tracking.operations import OpRecord as OpRecord
    from rooflight.tracking.operations import OpType as OpType
    from rooflight.tracking.operations import TensorShape as TensorShape
    from rooflight.tracking.operations import get_current_device_spec as get_current_device_spec

_HOMES = {
    "FunctionalPatcher": "rooflight.tracking.functions",
    "LayerSOLHooks": "rooflight.tracking.layers",
    "OpRecord": "rooflight.tracking.operations",
    "OpType": "rooflight.tracking.operations",
    "TensorShape": "rooflight.tracking.operations",
    "Tracker": "rooflight.tracking.loop",
    "add_sol_arguments": "rooflight.tracking.loop",
    "get_current_device_spec": "rooflight.tracking.operations",
    "initialize_sol": "rooflight.tracking.loop",
    "log_training_sol": "rooflight.tracking.loop",
    "shutdown_sol": "rooflight.tracking.loop",
    "sol_nvtx_range": "rooflight.capture.phases",
    "sol_profile": "rooflight.tracking.layers",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - names of the table above
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
