"""Inputs of each class of model: their kind, the length of a sequence, and the arguments of one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from rooflight.workloads import inputs_image, inputs_sound, inputs_text
from rooflight.workloads.classes import ChosenClass
from rooflight.workloads.errors import TargetError
from rooflight.workloads.wanted import Inputs, Wanted

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Food = Literal["text", "image", "sound", "image and text", "conversation", "caption"]


def food_of(chosen: ChosenClass) -> Food:
    """The kind of input of a class. Raises TargetError for a class whose inputs are not known."""
    if chosen.kind == "image-text-contrastive":
        return "image and text"
    if chosen.kind == "image-text-to-text":
        if {"input_ids", "pixel_values"} <= chosen.accepted:
            return "conversation"
        if {"decoder_input_ids", "pixel_values"} <= chosen.accepted:
            return "caption"
    by_argument: dict[str, Food] = {
        "input_ids": "text",
        "pixel_values": "image",
        "input_values": "sound",
        "input_features": "sound",
    }
    found = by_argument.get(chosen.main_input)
    if found is None or chosen.main_input not in chosen.accepted:
        raise TargetError(
            f"no inputs are known for {chosen.name}: write your own step and pass path/to/train.py:make_step"
        )
    return found


def make_inputs(wanted: Wanted) -> Inputs:
    """Arguments for one forward call. Raises TargetError for a class whose inputs cannot be made."""
    return _MAKERS[food_of(wanted.chosen)](wanted)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceRule:
    """The meaning of ``seq`` for a model: a length up to ``limit``, or none (``takes`` then names its input)."""

    takes: str = ""
    limit: int | None = None
    default: int | None = None  # where it is not the usual one


def sequence_rule(chosen: ChosenClass, config: PreTrainedConfig) -> SequenceRule:
    """How long the sequences of a class may be."""
    match food_of(chosen):
        case "text" | "image and text" | "conversation":
            return SequenceRule(limit=inputs_text.positions(config))
        case "caption":
            return SequenceRule(limit=inputs_text.positions(config))
        case "image":
            return SequenceRule(takes="video" if chosen.kind == "video-classification" else "images")
    if chosen.kind == "speech-to-text":
        return SequenceRule(limit=inputs_sound.transcript_limit(config))
    if chosen.main_input == "input_values" and inputs_sound.hears_frames(config):
        return SequenceRule(default=inputs_sound.default_frames(config))
    return SequenceRule(takes="sound of a fixed length")


_MAKERS: Final[dict[Food, Callable[[Wanted], Inputs]]] = {
    "text": inputs_text.text_inputs,
    "image": inputs_image.image_inputs,
    "sound": inputs_sound.sound_inputs,
    "image and text": inputs_image.contrastive_inputs,
    "conversation": inputs_image.conversation_inputs,
    "caption": inputs_image.caption_inputs,
}
