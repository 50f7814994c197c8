"""The nouns of this room that need no torch: what kind of model, which modes it can run in, and a preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from rooflight.workloads.extras import need_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ModelKind = Literal["causal-lm", "encoder", "seq2seq", "vision", "audio"]
Mode = Literal["forward", "train", "prefill", "decode"]

MODES: Final[dict[ModelKind, tuple[Mode, ...]]] = {
    "causal-lm": ("forward", "train", "prefill", "decode"),
    "encoder": ("forward", "train"),
    "seq2seq": ("forward", "train"),
    "vision": ("forward", "train"),
    "audio": ("forward", "train"),
}

AUTO_CLASSES: Final[dict[ModelKind, str]] = {
    "causal-lm": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "vision": "AutoModelForImageClassification",
    "audio": "AutoModelForSpeechSeq2Seq",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A public architecture by name: its shapes, without its weights. Dropout is off: shapes, not a training recipe."""

    name: str
    description: str
    source: str  # where the shapes are published
    kind: ModelKind
    model_type: str  # transformers' name of the architecture
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
