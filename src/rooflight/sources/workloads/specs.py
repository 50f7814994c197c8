"""The options of a step, checked and with the defaults filled in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from rooflight.sources.workloads.build import build_model, steady, torch_device, torch_dtype
from rooflight.sources.workloads.classes import KINDS, STEPS, ChosenClass, StepName, class_of
from rooflight.sources.workloads.errors import TargetError
from rooflight.sources.workloads.images import image_tokens
from rooflight.sources.workloads.inputs import SequenceRule, food_of, make_inputs, sequence_rule
from rooflight.sources.workloads.presets import Preset
from rooflight.sources.workloads.presets import preset as preset_named
from rooflight.sources.workloads.tensors import Draw, Inputs, Wanted

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

DEFAULT_BATCH: Final = 1
DEFAULT_SEQ: Final = 256
MOST: Final = 10**10
"""Tokens (or images) per step, at most: far beyond any machine, and few enough that bytes can be counted in 64 bits."""
_AT_MOST: Final = f"Rooflight counts up to {MOST:,} in a step"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSpec:
    """A step before its model is built. ``seq`` is 1 for a model without sequences (``has_seq`` is False)."""

    name: str
    config: PreTrainedConfig
    chosen: ChosenClass
    step: StepName
    batch: int
    seq: int
    has_seq: bool
    device: torch.device
    dtype: torch.dtype
    optimizer: str
    notes: tuple[str, ...]
    is_preset: bool

    @property
    def reads_values(self) -> bool:
        """Whether the work of the step depends on the values of its tensors."""
        kind = self.chosen.kind
        finds_the_end = kind == "sequence-classification" and self.config.is_encoder_decoder  # as BART does
        return finds_the_end or self.step in KINDS[kind].reads_values

    def build(self) -> PreTrainedModel:
        """The model, on its device, in the training mode of the step."""
        model = build_model(self.config, device=self.device, dtype=self.dtype, chosen=self.chosen)
        return cast("PreTrainedModel", model.train(self.step == "train"))

    def build_for_shapes(self) -> PreTrainedModel:
        """The model on meta, for inputs that depend only on the shapes of its modules."""
        return _for_shapes(self.config, self.chosen)

    def inputs(self, *, seq: int | None = None) -> Inputs:
        """The arguments of a call; ``seq`` replaces the step's."""
        length, draw = self.seq if seq is None else seq, Draw(device=self.device, dtype=self.dtype)
        labels = self.step == "train"
        return make_inputs(_wanted(self.config, self.chosen, draw=draw, batch=self.batch, seq=length, labels=labels))


def checked_spec(
    target: str | Preset | PreTrainedConfig,
    *,
    name: str = "",
    step: str,
    batch: int | None,
    seq: int | None,
    dtype: str | torch.dtype | None,
    device: str | torch.device,
    optimizer: str | None,
    small: bool,
) -> StepSpec:
    """The step with these options. Raises TargetError for options that are impossible or would have no effect."""
    wanted = preset_named(target) if isinstance(target, str) else target
    if isinstance(wanted, Preset):
        config, name = (wanted.small() if small else wanted.config()), wanted.name
        chosen = class_of(config, wanted.kind)
        name = f"{name} (reduced)" if small else name
        default_batch, default_seq = wanted.batch, wanted.seq or DEFAULT_SEQ
    elif small:
        raise TargetError("small is for presets: a config has no reduced shapes")
    else:
        config, chosen, name = wanted, class_of(wanted), name or str(wanted.model_type)
        default_batch, default_seq = DEFAULT_BATCH, DEFAULT_SEQ
    checked = _checked_step(step, chosen, name)
    if checked != "train" and optimizer not in (None, "none"):
        raise TargetError(f"optimizer {optimizer} has no effect: step {checked} has none; use step train")
    config, left_out = steady(config, chosen.kind)
    rule = sequence_rule(chosen, config)
    if seq is None and food_of(chosen) == "conversation":
        draw = Draw(device=torch_device("meta"), dtype=torch_dtype("bfloat16"))
        image = image_tokens(_wanted(config, chosen, draw=draw, batch=1, seq=1, labels=False))
        default_seq = image + DEFAULT_SEQ
    place = torch_device(device)
    sequences = _in_range("batch", default_batch if batch is None else batch)
    length = _checked_seq(seq, default_seq, rule, step=checked, name=name)
    if sequences * length > MOST:
        raise TargetError(f"batch {sequences} and seq {length} make {sequences * length:.0e} tokens: {_AT_MOST}")
    return StepSpec(
        name=name,
        config=config,
        chosen=chosen,
        step=checked,
        batch=sequences,
        seq=length,
        has_seq=not rule.takes,
        device=place,
        dtype=torch_dtype(dtype or _usual_dtype(place, chosen, checked)),
        optimizer=optimizer or "adamw",
        notes=tuple(_notes(chosen, left_out if checked == "train" else [])),
        is_preset=isinstance(wanted, Preset),
    )


def _usual_dtype(place: torch.device, chosen: ChosenClass, step: StepName) -> str:
    # torch has no distances in bfloat16, with which DETR's loss compares boxes
    return "float32" if place.type == "cpu" or (chosen.kind == "object-detection" and step == "train") else "bfloat16"


def _notes(chosen: ChosenClass, left_out: list[str]) -> list[str]:
    notes = [chosen.note] if chosen.note else []
    if left_out:
        notes.append(f"Left out of the config, because they change a step's work at random: {', '.join(left_out)}.")
    return notes


def _checked_step(step: str, chosen: ChosenClass, name: str) -> StepName:
    for known in STEPS:
        if step == known:
            allowed = KINDS[chosen.kind].steps
            if known not in allowed:
                no_loss = ": it computes no loss" if known == "train" else ""
                raise TargetError(
                    f"{name} ({chosen.name}, {chosen.kind}) has no step {step}{no_loss}: use {' or '.join(allowed)}"
                )
            return known
    raise TargetError(f'unknown step "{step}": use one of {", ".join(STEPS)}')


def _in_range(what: str, value: int) -> int:
    if value < 1:
        raise TargetError(f"{what} is {value}: it must be at least 1")
    if value > MOST:
        raise TargetError(f"{what} is {value}: {_AT_MOST}")
    return value


def _checked_seq(seq: int | None, default: int, rule: SequenceRule, *, step: StepName, name: str) -> int:
    if rule.takes:
        if seq is not None:
            raise TargetError(f"seq {seq} has no effect: {name} takes {rule.takes}")
        return 1
    new = 1 if step == "decode" else 0  # the new token takes a position too
    if seq is None:
        default = rule.default or default
        return default if rule.limit is None else max(min(default, rule.limit - new), 1)
    _in_range("seq", seq)
    if rule.limit is not None and seq + new > rule.limit:
        extra = " and the new token" if new else ""
        raise TargetError(f"seq {seq}{extra} is too long for {name}: it has {rule.limit} positions")
    return seq


def _wanted(config: PreTrainedConfig, chosen: ChosenClass, *, draw: Draw, batch: int, seq: int, labels: bool) -> Wanted:
    on_meta: Callable[[], PreTrainedModel] = partial(_for_shapes, config, chosen)
    return Wanted(chosen=chosen, config=config, draw=draw, batch=batch, seq=seq, labels=labels, on_meta=on_meta)


def _for_shapes(config: PreTrainedConfig, chosen: ChosenClass) -> PreTrainedModel:
    # in bfloat16: on meta, torch has the grouped matmuls of a mixture of experts in no other dtype
    model = build_model(config, device="meta", dtype="bfloat16", chosen=chosen)
    return cast("PreTrainedModel", model.train(False))
