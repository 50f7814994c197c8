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
    from rooflight.sources.capture.phases import sol_nvtx_range as sol_nvtx_range

    from .functions import FunctionalPatcher as FunctionalPatcher
    from .layers import LayerSOLHooks as LayerSOLHooks
    from .layers import sol_profile as sol_profile
    from .loop import Tracker as Tracker
    from .loop import add_sol_arguments as add_sol_arguments
    from .loop import initialize_sol as initialize_sol
    from .loop import log_training_sol as log_training_sol
    from .loop import shutdown_sol as shutdown_sol
    from .operations import OpRecord as OpRecord
    from .operations import OpType as OpType
    from .operations import TensorShape as TensorShape
    from .operations import get_current_device_spec as get_current_device_spec

_HOMES = {
    "FunctionalPatcher": f"{__name__}.functions",
    "LayerSOLHooks": f"{__name__}.layers",
    "OpRecord": f"{__name__}.operations",
    "OpType": f"{__name__}.operations",
    "TensorShape": f"{__name__}.operations",
    "Tracker": f"{__name__}.loop",
    "add_sol_arguments": f"{__name__}.loop",
    "get_current_device_spec": f"{__name__}.operations",
    "initialize_sol": f"{__name__}.loop",
    "log_training_sol": f"{__name__}.loop",
    "shutdown_sol": f"{__name__}.loop",
    "sol_nvtx_range": "rooflight.sources.capture.phases",
    "sol_profile": f"{__name__}.layers",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - names of the table above
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
