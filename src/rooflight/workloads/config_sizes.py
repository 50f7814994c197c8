"""Refuses sizes that no model can have, and of which transformers builds one all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.workloads.errors import TargetError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_AT_LEAST_ONE: Final = frozenset(
    {
        *("vocab_size", "hidden_size", "n_embd", "d_model", "embed_dim", "embedding_size", "dim", "hidden_sizes"),
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "depths"),
        *("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads", "head_dim", "d_kv"),
        *("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"),
        *("intermediate_size", "d_ff", "ffn_dim", "state_size", "num_labels"),
        *("n_positions", "max_position_embeddings", "max_source_positions", "max_target_positions"),
        *("image_size", "patch_size", "num_channels", "num_frames", "temporal_patch_size", "spatial_merge_size"),
        *("num_mel_bins", "conv_dim", "conv_kernel", "conv_stride", "sampling_rate"),
    }
)
"""Fields that count parts which every model has; with 0 of them or fewer, some models are built and do no work."""


def check_sizes(values: dict[str, Any], path: Path) -> None:
    """Raise TargetError for a field below 1 that counts heads, layers or the like, at any depth."""
    for place, number in _numbers(values, ""):
        if number < 1:
            raise TargetError(f"{path}: {place} is {number}: it must be at least 1")


def _numbers(value: Any, place: str) -> Iterator[tuple[str, int]]:
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        yield from _numbers(inner, f"{place}{name}.")
        if name in _AT_LEAST_ONE:
            for number in inner if isinstance(inner, list) else (inner,):
                if isinstance(number, int) and not isinstance(number, bool):
                    yield f"{place}{name}", number


def check_heads(config: PreTrainedConfig, path: Path) -> None:
    """Raise TargetError if query heads cannot share the heads of keys and values evenly; on meta torch raises none."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        heads, shared = (getattr(part, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
        if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
            raise TargetError(f"{path}: {heads} attention heads cannot share {shared} key-value heads evenly")
