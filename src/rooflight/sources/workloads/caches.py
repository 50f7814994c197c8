"""Key-value caches for steps that are repeated: one that keeps nothing, and one that never grows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    EncoderDecoderCache,
    LinearAttentionCacheLayerMixin,
)

from rooflight.sources.workloads.errors import TargetError, in_one_line

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel


class PassingCache(DynamicCache):
    """Returns keys and values without keeping them.

    A full sequence needs no cache, but without one transformers reads the position numbers back to the host to look
    for packed sequences: a synchronisation on a GPU and an error on meta.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The keys and values that were passed."""
        return key_states, value_states


class HeldLayer(DynamicLayer):
    """A full-attention layer with ``seq`` tokens cached and room for one more, which every update overwrites."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.keys, self.values = keys, values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self._places = keys, values

    def get_seq_length(self) -> int:
        """Tokens cached before the step, however often it ran."""
        return int(self._places[0].shape[-2]) - 1

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new token into the last place, without copying the rest as transformers' growing cache does."""
        for place, new in zip(self._places, (key_states, value_states), strict=True):
            place.narrow(-2, self.get_seq_length(), 1).copy_(new)
        return self._places


def passing_cache(config: PreTrainedConfig) -> Cache | None:
    """A cache that keeps nothing, or None for a model with layers whose state is not keys and values (Mamba).

    Raises TargetError for a config of which transformers makes no cache.
    """
    try:
        cache = PassingCache(config=config)
    except Exception as error:  # whatever transformers raises for odd values
        raise TargetError(f"transformers makes no cache of this config: {in_one_line(error)}") from error
    if any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers):
        return None
    return EncoderDecoderCache(cache, PassingCache(config=config)) if config.is_encoder_decoder else cache


def held_cache(
    model_on_meta: PreTrainedModel, *, batch: int, seq: int, device: torch.device, dtype: torch.dtype
) -> tuple[str, Callable[[], Any]]:
    """The argument that takes the model's cache, and a function that returns a fresh cache with ``seq`` tokens in it.

    The shapes come from a prefill on meta. On a real device the contents are random; tensors that have the dtype of the
    model on meta get ``dtype``. A step writes to the same storage every time, so a repeated step neither grows the
    cache nor allocates. Raises TargetError when the model cannot prefill on meta.
    """
    ids = torch.empty((batch, seq), dtype=torch.int64, device="meta")
    try:
        with torch.no_grad():
            output = model_on_meta(input_ids=ids, use_cache=True)
    except Exception as error:  # whatever a model's own code raises
        name = type(model_on_meta).__name__
        raise TargetError(f"cannot size the cache of {name}: {in_one_line(error)}") from error
    argument = "cache_params" if "cache_params" in output else "past_key_values"
    cache = output.get(argument)
    if not hasattr(cache, "layers"):
        raise TargetError(f"{type(model_on_meta).__name__} keeps no cache: step decode has no meaning for it")
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(0)

    def real(tensor: Tensor) -> Tensor:
        if generator is None:
            return tensor.clone()  # of a window alone, not of all that it slid over
        if not tensor.is_floating_point():
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
        own = dtype if tensor.dtype == model_on_meta.dtype else tensor.dtype  # some states are float32 in any model
        return torch.randn(tensor.shape, dtype=own, device=device, generator=generator)

    held = copy.copy(cache)
    held.layers = [_held(layer, real) for layer in cache.layers]

    def afresh() -> Any:
        again = copy.copy(held)
        again.layers = [_mapped(layer, lambda tensor: tensor) for layer in held.layers]
        return again

    return argument, afresh


def _held(layer: Any, real: Callable[[Tensor], Tensor]) -> Any:
    if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
        room = [torch.cat([cached, cached[..., :1, :]], dim=-2) for cached in (layer.keys, layer.values)]
        return HeldLayer(*(real(tensor) for tensor in room))
    return _mapped(layer, real)


def _mapped(layer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a cache layer with containers of its own and every tensor passed through ``change``."""
    copied = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor):
            setattr(copied, name, change(value))
        elif isinstance(value, list):
            setattr(copied, name, [change(v) if isinstance(v, torch.Tensor) else v for v in value])
        elif isinstance(value, dict):
            setattr(copied, name, {k: change(v) if isinstance(v, torch.Tensor) else v for k, v in value.items()})
    floating = next((v for v in vars(copied).values() if isinstance(v, torch.Tensor) and v.is_floating_point()), None)
    if floating is not None and hasattr(copied, "device"):
        copied.device, copied.dtype = floating.device, floating.dtype
    return copied
