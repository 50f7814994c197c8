"""What a model's config shows of the work of an engine's ops: its heads, its experts, the bits of its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from rooflight.workloads.presets import PRESETS

_EXPERTS_PER_TOKEN: Final = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERT_WIDTH: Final = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size")
_WIDTH: Final = ("hidden_size", "n_embd", "d_model")
_WITHOUT_GATE: Final = frozenset({"relu", "relu2"})
"""Activations of experts with two matrices; those of others multiply their result by that of a third."""

_BITS: Final = {"mxfp4": 4, "nvfp4": 4, "fp8": 8, "fbgemm_fp8": 8, "awq": 4, "gptq": 4, "bitsandbytes": 4}
_LEAST_BITS: Final = 4
"""Of a way to quantize that is not known: the fewest that engines have kernels for."""

Model = Mapping[str, Any] | str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model as its transformers config describes it; 0 where it has nothing. ``window``: the keys that a query of
    some layer sees at the most, ``expert_bits``: those of a weight, the least where the config has none.
    """

    name: str
    hidden_size: int
    heads: int
    experts: int
    experts_per_token: int
    expert_weights: int
    expert_bits: int
    window: int

    @property
    def has_experts(self) -> bool:
        """Whether the config has all that a layer of experts does."""
        return min(self.hidden_size, self.experts_per_token, self.expert_weights) > 0


def read_model(model: Model) -> ModelFacts:
    """The facts of a config: a mapping, the path of a config.json or its folder, or the name of a preset.

    Raises ValueError for a file that is no config and for a name that no preset has; OSError.
    """
    if isinstance(model, Mapping):
        return _facts("config", model)
    path = Path(model)
    if (preset := PRESETS.get(str(model).lower())) is not None:
        return _facts(preset.name, preset.shapes)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise ValueError(f"{model} is no file and no preset: give the model's config.json, or see rooflight presets")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: give the model's config.json") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object: give the model's config.json")
    return _facts(path.name, config)


def _facts(name: str, config: Mapping[str, Any]) -> ModelFacts:
    text = config.get("text_config")
    inner = {**config, **text} if isinstance(text, Mapping) else config
    found = ModelFacts(
        name=name,
        hidden_size=_integer(inner, *_WIDTH),
        heads=_integer(inner, "num_attention_heads", "n_head"),
        experts=_integer(inner, *_EXPERTS),
        experts_per_token=_integer(inner, *_EXPERTS_PER_TOKEN),
        expert_weights=_matrices(inner) * _integer(inner, *_EXPERT_WIDTH) * _integer(inner, *_WIDTH),
        expert_bits=_bits(inner),
        window=_window(inner),
    )
    if not found.hidden_size:
        raise ValueError(f"{name} has no hidden_size: give the config.json of a language model")
    return found


def _integer(config: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _matrices(config: Mapping[str, Any]) -> int:
    names = {config.get(key) for key in ("hidden_act", "mlp_hidden_act", "hidden_activation", "activation")}
    return 2 if names & _WITHOUT_GATE else 3


def _window(config: Mapping[str, Any]) -> int:
    if config.get("use_sliding_window") is False:
        return 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and not any("sliding" in str(kind) or "chunked" in str(kind) for kind in kinds):
        return 0
    return _integer(config, "sliding_window", "attention_chunk_size")


def _bits(config: Mapping[str, Any]) -> int:
    quantized = config.get("quantization_config")
    if not isinstance(quantized, Mapping):
        return 16
    bits = [value for value in _all_values(quantized, ("bits", "num_bits", "weight_bits")) if value > 0]
    method = str(quantized.get("quant_method", "")).lower()
    return min(bits) if bits else _BITS.get(method, _LEAST_BITS)


def _all_values(config: Mapping[str, Any], keys: tuple[str, ...]) -> list[int]:
    found = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            found += _all_values(value, keys)
        elif key in keys and isinstance(value, int) and not isinstance(value, bool):
            found.append(value)
    return found
