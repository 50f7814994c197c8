"""The models of a generation loop, as a user names them: a preset, a transformers config, layers of the target."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rooflight.machine.presence import free_memory_bytes
from rooflight.records.quantity import Quantity
from rooflight.workloads.build import build_model, torch_device, torch_dtype
from rooflight.workloads.classes import ChosenClass, class_of
from rooflight.workloads.errors import TargetError
from rooflight.workloads.extras import need_transformers
from rooflight.workloads.preset import Preset
from rooflight.workloads.targets import ConfigFile, find_target

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

OWN_LAYERS: Final = re.compile(r"self:([0-9]{1,6})")
"""A draft that is the first layers of the target, with its embeddings, last norm and head."""

_ROOM: Final = 1.2  # over weights and caches: activations, kernels' workspaces, allocators that round up


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedConfig:
    """A decoder before it is built."""

    name: str
    config: PreTrainedConfig
    chosen: ChosenClass

    @property
    def notes(self) -> list[str]:
        """What was not done as the config says."""
        return [self.chosen.note] if self.chosen.note else []

    def build(self, *, device: str, dtype: str) -> PreTrainedModel:
        """The model, ready to serve, with random weights that are the same in every run."""
        model: Any = build_model(self.config, device=device, dtype=dtype, chosen=self.chosen)
        built: PreTrainedModel = model.train(False)
        return built


def decoder_config(text: str, *, small: bool) -> NamedConfig:
    """The decoder that ``text`` names. Raises TargetError for anything else, such as an encoder."""
    need_transformers()
    target = find_target(text)
    if not isinstance(target, Preset | ConfigFile):
        raise TargetError(f"{text}: name a preset or a transformers config.json")
    if isinstance(target, Preset):
        config, name = (target.small(), f"{target.name} (reduced)") if small else (target.config(), target.name)
        chosen = class_of(config, target.kind)
    else:
        if small:
            raise TargetError("--small is for presets: a config has no reduced shapes")
        config, name = target.config(), str(target.path)
        chosen = class_of(config)
    if chosen.kind != "causal-lm" or config.is_encoder_decoder:
        raise TargetError(f"{name} is {chosen.name}, {chosen.kind}: only decoders (causal-lm) generate tokens here")
    return NamedConfig(name=name, config=config, chosen=chosen)


def draft_config(text: str, target: NamedConfig, *, small: bool) -> NamedConfig:
    """The draft that ``text`` names, for a target: ``self:2`` is the target's first 2 layers."""
    own = OWN_LAYERS.fullmatch(text)
    if own is None:
        try:
            return decoder_config(text, small=small)
        except TargetError as error:
            raise TargetError(f"--draft {text}: {error}") from error
    layers, all_layers = int(own[1]), target.config.get_text_config().num_hidden_layers
    if not 1 <= layers < all_layers:
        raise TargetError(f"--draft {text}: {target.name} has {all_layers} layers; take from 1 to {all_layers - 1}")
    config = copy.deepcopy(target.config)
    part = config.get_text_config()
    part.num_hidden_layers = layers
    if getattr(part, "layer_types", None) and not isinstance(getattr(type(part), "layer_types", None), property):
        part.layer_types = part.layer_types[:layers]
    return NamedConfig(name=f"the first {layers} of its layers", config=config, chosen=target.chosen)


def share_weights(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Give a draft that is the target's first layers the target's own tensors: both read the same memory."""
    draft.load_state_dict({name: tensor for name, tensor in target.state_dict().items()
                           if name in draft.state_dict()}, assign=True)  # fmt: skip
    draft.tie_weights()


def check_memory(models: list[NamedConfig], *, batch: int, tokens: int, device: str, dtype: str) -> None:
    """Raise TargetError where weights and KV caches of ``tokens`` per sequence do not fit into free memory. While a
    draft that is a part of its target is built, it has weights of its own.
    """
    size = torch_dtype(dtype).itemsize
    needed = 0
    for each in models:
        model = each.build(device="meta", dtype="bfloat16")
        needed += size * sum(parameter.numel() for parameter in model.parameters())
        needed += size * batch * tokens * _cached_per_token(each.config)
    free = free_memory_bytes(torch_device(device).type)
    if free is not None and needed * _ROOM > free:
        raise TargetError(
            f"weights and KV cache need {Quantity(needed, 'B')}, {Quantity(free, 'B')} are free here: take a smaller "
            "--batch, --prompt or --new, another --dtype, or --small"
        )


def _cached_per_token(config: PreTrainedConfig) -> int:
    """Numbers that the KV cache holds of each token, all layers; 0 where the config does not say."""
    part: Any = config.get_text_config()
    queries, width, layers = (
        int(getattr(part, name, None) or 0) for name in ("num_attention_heads", "hidden_size", "num_hidden_layers")
    )
    heads = int(getattr(part, "num_key_value_heads", None) or queries)
    return 2 * layers * heads * int(getattr(part, "head_dim", None) or width // max(queries, 1))
