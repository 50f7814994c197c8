"""Settings of torch on which generated code depends: taken in the program, applied in its worker.

One that is missing here costs no wrong code: the key of Inductor's cache then differs, and the program compiles itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

import torch

_AUTOCAST: Final = ("cpu", "cuda")


def settings_now() -> dict[str, Any]:
    """The settings as plain values."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    return {
        "inductor": inductor.save_config_portable(ignore_private_configs=False),
        "functorch": functorch.save_config_portable(ignore_private_configs=False),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),  # a constant of the generated loops
        "dtype": torch.get_default_dtype(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "precision": torch.get_float32_matmul_precision(),
        "autocast": [
            (device, torch.get_autocast_dtype(device)) for device in _AUTOCAST if torch.is_autocast_enabled(device)
        ],
    }


def applied(settings: dict[str, Any], stack: ExitStack) -> None:
    """Have this process like the one that the settings are of; those that end do so with ``stack``."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    torch.set_num_threads(settings["threads"])
    torch.set_default_dtype(settings["dtype"])
    torch.use_deterministic_algorithms(settings["deterministic"][0], warn_only=settings["deterministic"][1])
    if torch.get_float32_matmul_precision() != settings["precision"]:  # setting it leaves a trace, even the default
        torch.set_float32_matmul_precision(settings["precision"])
    for config, name in ((inductor, "inductor"), (functorch, "functorch")):
        ours = config.save_config_portable(ignore_private_configs=False)
        stack.enter_context(
            config.patch({key: value for key, value in settings[name].items() if ours.get(key, key) != value})
        )
    for device, dtype in settings["autocast"]:
        stack.enter_context(torch.autocast(device, dtype))
    stack.enter_context(torch.set_grad_enabled(settings["grad"]))


def backward_too() -> AbstractContextManager[Any]:
    """Backward graphs are compiled with their forward in the block, instead of at the first backward pass."""
    from torch._functorch import config as functorch

    return functorch.patch(force_non_lazy_backward_lowering=True)  # type: ignore[no-any-return]
