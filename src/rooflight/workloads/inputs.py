"""Inputs of each kind of model: random on a real device, empty on meta. Never a padding mask: every token counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflight.workloads.errors import TargetError
from rooflight.workloads.extras import need_torch
from rooflight.workloads.preset import ModelKind

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedConfig

_DEFAULT_IMAGE_SIZE = 224


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What to call a model with, and how many tokens that makes it process (None where tokens mean nothing)."""

    arguments: dict[str, Tensor]
    tokens: int | None
    sizes: str  # "batch 1, sequence 256", for descriptions


def make_inputs(
    kind: ModelKind,
    config: PreTrainedConfig,
    *,
    batch: int,
    seq: int,
    device: torch.device,
    dtype: torch.dtype,
    labels: bool,
) -> Inputs:
    """Arguments for one forward call, with labels when the model is to return a loss."""
    draw = _Draw(device=device, dtype=dtype)
    return _MAKERS[kind](config, draw, batch, seq, labels)


def seq_limit(kind: ModelKind, config: PreTrainedConfig) -> int | None:
    """The longest sequence a model has positions for; None where nothing limits it."""
    if kind == "vision":
        return None
    text = config.get_text_config()
    name = "max_target_positions" if kind == "audio" else "max_position_embeddings"
    limit = getattr(text, name, None)
    return limit if isinstance(limit, int) and limit > 0 else None


class _Draw:
    """Tensors of a device: random but always the same, or on meta only their shapes."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype) -> None:
        self.torch = need_torch()
        self.device = device
        self.dtype = dtype
        self.generator = None if device.type == "meta" else self.torch.Generator(device).manual_seed(0)

    def ids(self, *shape: int, below: int) -> Tensor:
        if self.generator is None:
            return self._empty(shape, self.torch.int64)
        drawn: Tensor = self.torch.randint(0, below, shape, generator=self.generator, device=self.device)
        return drawn

    def normal(self, *shape: int) -> Tensor:
        if self.generator is None:
            return self._empty(shape, self.dtype)
        drawn: Tensor = self.torch.randn(shape, generator=self.generator, device=self.device, dtype=self.dtype)
        return drawn

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made: Tensor = self.torch.empty(shape, dtype=dtype, device=self.device)
        return made


def _vocabulary(config: PreTrainedConfig) -> int:
    size: int | None = config.get_text_config().vocab_size
    if size is None:
        raise TargetError(f'the config of model_type "{config.model_type}" has no vocab_size')
    return size


def _text(config: PreTrainedConfig, draw: _Draw, batch: int, seq: int, labels: bool) -> Inputs:
    vocab = _vocabulary(config)
    arguments = {"input_ids": draw.ids(batch, seq, below=vocab)}
    if labels:
        arguments["labels"] = draw.ids(batch, seq, below=vocab)
    return Inputs(arguments=arguments, tokens=batch * seq, sizes=f"batch {batch}, sequence {seq}")


def _translation(config: PreTrainedConfig, draw: _Draw, batch: int, seq: int, labels: bool) -> Inputs:
    vocab = _vocabulary(config)
    target = "labels" if labels else "decoder_input_ids"  # from labels the model derives the decoder's input
    arguments = {"input_ids": draw.ids(batch, seq, below=vocab), target: draw.ids(batch, seq, below=vocab)}
    return Inputs(arguments=arguments, tokens=2 * batch * seq, sizes=f"batch {batch}, sequence {seq} on both sides")


def _images(config: PreTrainedConfig, draw: _Draw, batch: int, seq: int, labels: bool) -> Inputs:
    del seq  # an image has no sequence
    size: Any = getattr(config, "image_size", None) or _DEFAULT_IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    arguments = {"pixel_values": draw.normal(batch, getattr(config, "num_channels", 3), height, width)}
    if labels:
        arguments["labels"] = draw.ids(batch, below=config.num_labels or 2)
    return Inputs(arguments=arguments, tokens=None, sizes=f"batch {batch}, images {height} x {width}")


def _speech(config: PreTrainedConfig, draw: _Draw, batch: int, seq: int, labels: bool) -> Inputs:
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if bins is None or positions is None:
        raise TargetError(f'no audio input is known for model_type "{config.model_type}": only Whisper\'s mel frames')
    frames = 2 * positions  # the second convolution halves them
    target = "labels" if labels else "decoder_input_ids"
    arguments = {
        "input_features": draw.normal(batch, bins, frames),
        target: draw.ids(batch, seq, below=_vocabulary(config)),
    }
    return Inputs(arguments=arguments, tokens=batch * seq, sizes=f"batch {batch}, {frames} mel frames, {seq} tokens")


_Maker = Callable[["PreTrainedConfig", _Draw, int, int, bool], Inputs]

_MAKERS: dict[ModelKind, _Maker] = {
    "causal-lm": _text,
    "encoder": _text,
    "seq2seq": _translation,
    "vision": _images,
    "audio": _speech,
}
