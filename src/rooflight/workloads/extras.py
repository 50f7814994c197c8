"""The libraries a workload needs, asked for by name, with the line to install them when they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from rooflight.workloads.errors import TargetError


def need_torch() -> ModuleType:
    """The torch package. Raises TargetError with the line to install it."""
    return _need("torch", extra="torch", purpose="recording a PyTorch program")


def need_transformers() -> ModuleType:
    """The transformers package. Raises TargetError with the line to install it."""
    need_torch()  # transformers imports without torch, then has no models
    return _need("transformers", extra="hf", purpose="building presets and config.json models")


def _need(name: str, *, extra: str, purpose: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # it is there and broken: its own error says more
            raise
        raise TargetError(f'{purpose} needs {name}: pip install "rooflight[{extra}]"') from error
