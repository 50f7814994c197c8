"""A KV cache in which each sequence of a batch has a length of its own, and what tells a model of it.

Speculative decoding accepts another number of tokens per sequence. Here each sequence writes its new keys and values
behind its own last token, over those of rejected tokens; nothing is copied or cropped. Attention gets the slots up to
the longest sequence, and a mask that hides from each token what lies behind it in its own sequence.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"


class Slots:
    """Where the next forward pass writes: ``starts`` has the tokens cached of each sequence."""

    def __init__(self, batch: int, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self._rows = torch.arange(batch, device=device)[:, None]
        self._device = device
        self.put([0] * batch, 1)

    def put(self, starts: Sequence[int], queries: int) -> None:
        """The next pass writes ``queries`` tokens of each sequence from its start on."""
        self.first = max(starts)
        self.end = self.first + queries
        assert self.end <= self.capacity
        self.uniform = min(starts) == self.first
        if not self.uniform:
            at = torch.tensor(starts, device=self._device)[:, None]
            self.positions = at + torch.arange(queries, device=self._device)

    def write(self, held: Tensor, new: Tensor) -> Tensor:
        """Write ``new`` [batch, heads, queries, size] into ``held``; return the filled part of it."""
        if self.uniform:
            held[:, :, self.first : self.end] = new
        else:
            held[self._rows, :, self.positions] = new.transpose(1, 2)
        return held[:, :, : self.end]


class RaggedLayer(DynamicLayer):
    """The keys and values of one layer."""

    def __init__(self, slots: Slots) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._slots = slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate all slots. They are zeros: what is hidden from attention is multiplied by 0, and must be finite."""
        self.dtype, self.device = key_states.dtype, key_states.device
        room = self._slots.capacity
        self.keys, self.values = (
            new.new_zeros((*new.shape[:2], room, new.shape[-1])) for new in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new tokens of each sequence behind its others; keys and values up to the longest."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        return self._slots.write(self.keys, key_states), self._slots.write(self.values, value_states)

    def get_seq_length(self) -> int:
        """Tokens cached before the pass, of the longest sequence."""
        return self._slots.first


class RaggedCache:
    """The cache of a model and a batch, with room for ``capacity`` tokens per sequence.

    Raises ValueError for a model whose state is not keys and values of every token, and for a batch of several with a
    model that does not take the positions of its tokens.
    """

    def __init__(self, model: PreTrainedModel, *, batch: int, capacity: int) -> None:
        accepted = inspect.signature(model.forward).parameters
        name = type(model).__name__
        layers = DynamicCache(config=model.config).layers
        kinds = {type(layer) for layer in layers}
        if not kinds or kinds - {DynamicLayer, DynamicSlidingWindowLayer} or "past_key_values" not in accepted:
            raise ValueError(f"{name} keeps other state than keys and values: rejected tokens cannot be taken back")
        self._takes_positions = "position_ids" in accepted
        config = model.config.get_text_config()
        if batch > 1 and (not self._takes_positions or getattr(config, "alibi", False)):
            raise ValueError(
                f"{name} does not take positions of tokens: the sequences of a batch cannot have lengths of their own; "
                "use a batch of 1"
            )
        self._limit = getattr(config, "max_position_embeddings", None)
        self._eager = model.config._attn_implementation == "eager"
        if not self._eager and model.config._attn_implementation != "sdpa":
            raise ValueError(f"{name} uses {model.config._attn_implementation}: load it with attn_implementation sdpa")
        self._dtype, self._device = model.dtype, model.device
        self._windows = _windows(config)
        self._slots = Slots(batch, capacity, model.device)
        self._layers = [RaggedLayer(self._slots) for _ in layers]
        self._cache = Cache(layers=[*self._layers])

    @property
    def tensors(self) -> list[Tensor | None]:
        """Keys and values of all layers, with room for all tokens; None before the first pass."""
        return [tensor for layer in self._layers for tensor in (layer.keys, layer.values)]

    def arguments(self, starts: Sequence[int], queries: int) -> dict[str, Any]:
        """Arguments of a pass over the next ``queries`` tokens of each sequence, of which ``starts`` are cached."""
        self._slots.put(starts, queries)
        found: dict[str, Any] = {"past_key_values": self._cache, "use_cache": True}
        if not self._slots.uniform:
            at = self._slots.positions
            found["position_ids"] = at if self._limit is None else at.clamp(max=self._limit - 1)
            masks = {kind: self._mask(at, window) for kind, window in self._windows.items()}
            found["attention_mask"] = masks if len(masks) > 1 else next(iter(masks.values()))
        elif self._takes_positions:
            at = torch.arange(self._slots.first, self._slots.end, device=self._device)[None]
            found["position_ids"] = at if self._limit is None else at.clamp(max=self._limit - 1)
        return found

    def _mask(self, positions: Tensor, window: int | None) -> Tensor:
        """What each token may see, [batch, 1, queries, slots]."""
        slots = torch.arange(self._slots.end, device=self._device)
        seen = slots <= positions[:, None, :, None]
        if window is not None:
            seen &= slots > positions[:, None, :, None] - window
        if not self._eager:
            return seen
        hidden = torch.zeros(seen.shape, dtype=self._dtype, device=self._device)
        return hidden.masked_fill_(~seen, torch.finfo(self._dtype).min)


def _windows(config: Any) -> dict[str, int | None]:
    """The sliding window of each kind of layer, by transformers' name of the kind; None where a layer sees all."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or (_FULL if window is None else _SLIDING,))
    if others := kinds - {_FULL, _SLIDING}:
        raise ValueError(f"layers with {' and '.join(sorted(others))}: only full and sliding attention are known here")
    return {kind: window if kind == _SLIDING else None for kind in sorted(kinds)}
