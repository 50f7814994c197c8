"""A preset: a public architecture by name. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rooflight.workloads.extras import need_transformers
from rooflight.workloads.kinds import ModelKind

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A public architecture by name: its shapes, without its weights and its training recipe. Dropout is off."""

    name: str
    description: str
    source: str  # where the shapes are published
    kind: ModelKind
    model_type: str  # transformers' name of the architecture
    parameters: int  # of the full size, tied embeddings counted once
    shapes: Mapping[str, Any] = field(repr=False)
    reduced: Mapping[str, Any] = field(repr=False)  # what `small` changes
    batch: int = 1
    seq: int = 256

    def config(self) -> PreTrainedConfig:
        """The full-size transformers config."""
        return _config(self.model_type, self.shapes)

    def small(self) -> PreTrainedConfig:
        """The same architecture, few layers and narrow: a step takes about a second on a CPU."""
        return _config(self.model_type, {**self.shapes, **self.reduced})


def _config(model_type: str, values: Mapping[str, Any]) -> PreTrainedConfig:
    # a config keeps the dicts and lists it is given and edits some of them
    copied = {
        k: dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, list) else v for k, v in values.items()
    }
    config: PreTrainedConfig = need_transformers().AutoConfig.for_model(model_type, **copied)
    return config
