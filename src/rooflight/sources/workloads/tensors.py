"""Which inputs a step needs, and tensors for them: random but always the same, on meta only their shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflight.sources.workloads.classes import ChosenClass
from rooflight.sources.workloads.errors import TargetError, need_torch

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel


class Draw:
    """Draws tensors of one device; the same sequence of calls gives the same numbers."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype) -> None:
        self.torch = need_torch()
        self.device = device
        self.dtype = dtype
        self.generator = None if device.type == "meta" else self.torch.Generator(device).manual_seed(0)

    @property
    def on_meta(self) -> bool:
        """Whether tensors have shapes and no numbers."""
        return self.generator is None

    def ids(self, *shape: int, below: int) -> Tensor:
        """Random integers from 0 to ``below``, which is excluded."""
        if self.on_meta:
            return self._empty(shape, self.torch.int64)
        drawn: Tensor = self.torch.randint(0, below, shape, generator=self.generator, device=self.device)
        return drawn

    def normal(self, *shape: int) -> Tensor:
        """Normally distributed numbers, in the dtype of the weights."""
        if self.on_meta:
            return self._empty(shape, self.dtype)
        drawn: Tensor = self.torch.randn(shape, generator=self.generator, device=self.device, dtype=self.dtype)
        return drawn

    def uniform(self, *shape: int) -> Tensor:
        """Numbers between 0 and 1, in float32, as labels have them."""
        if self.on_meta:
            return self._empty(shape, self.torch.float32)
        drawn: Tensor = self.torch.rand(shape, generator=self.generator, device=self.device)
        return drawn

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made: Tensor = self.torch.empty(shape, dtype=dtype, device=self.device)
        return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The arguments of one call of a model, and how many tokens it then processes (None for a model without tokens)."""

    arguments: dict[str, Any]
    tokens: int | None
    sizes: str  # "batch 1, sequence 256", for descriptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Inputs of a class for one forward call, with labels when the model is to return a loss."""

    chosen: ChosenClass
    config: PreTrainedConfig
    draw: Draw
    batch: int
    seq: int
    labels: bool
    on_meta: Callable[[], PreTrainedModel]  # the model without memory, for those whose inputs depend on their modules

    @property
    def num_labels(self) -> int:
        """The number of classes of a classifier."""
        return self.config.num_labels or 2

    def accepts(self, name: str) -> bool:
        """Whether the model's forward takes an argument of that name."""
        return name in self.chosen.accepted


def vocabulary(config: PreTrainedConfig) -> int:
    """The number of tokens. Raises TargetError for a config without a vocabulary."""
    size = getattr(config.get_text_config(), "vocab_size", None)
    if not isinstance(size, int):
        raise TargetError(f'the config of model_type "{config.model_type}" has no vocab_size')
    return size


def config_value(config: Any, *names: str, parts: tuple[str, ...] = ("vision_config", "encoder")) -> Any:
    """The first of the names that a config, or the part of it that describes its images, has a value for; else None."""
    for holder in (config, *(getattr(config, part, None) for part in parts)):
        for name in names:
            value = getattr(holder, name, None)
            if value is not None:
                return value
    return None


def class_labels(wanted: Wanted) -> Any:
    """One label for each item of the batch, of the form that the config's problem type asks for."""
    classes, problem = wanted.num_labels, getattr(wanted.config, "problem_type", None)
    if problem == "multi_label_classification":
        return wanted.draw.uniform(wanted.batch, classes).to(wanted.draw.dtype)
    if problem == "regression" or (classes == 1 and problem is None):
        shape = (wanted.batch,) if classes == 1 else (wanted.batch, classes)
        return wanted.draw.uniform(*shape).to(wanted.draw.dtype)
    return wanted.draw.ids(wanted.batch, below=classes)
