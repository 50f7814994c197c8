"""A step of a model: what one call of a zero-argument function runs, ready to be recorded or timed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rooflight.workloads.build import build_model, kind_of, quiet_transformers, torch_device, torch_dtype
from rooflight.workloads.errors import RunFailed, TargetError, told_in_one_line
from rooflight.workloads.extras import need_torch
from rooflight.workloads.inputs import Inputs, make_inputs, seq_limit
from rooflight.workloads.optimizers import TITLES, make_optimizer
from rooflight.workloads.preset import MODES, Mode, ModelKind, Preset
from rooflight.workloads.presets import preset as preset_named

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from transformers import PreTrainedConfig, PreTrainedModel

DEFAULT_BATCH = 1
DEFAULT_SEQ = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step: call ``run``; it may be called any number of times and raises RunFailed when the step breaks."""

    run: Callable[[], Any] = field(repr=False)
    model: nn.Module | None = field(repr=False, default=None)
    optimizer: Optimizer | None = field(repr=False, default=None)
    description: str  # one line: what runs, how much, in which format
    mode: Mode | None = None  # None: the user's own step
    batch: int | None = None
    seq: int | None = None
    tokens: int | None = None  # processed a step; None where tokens mean nothing or nobody said
    dtype: str | None = None
    device: str | None = None
    notes: tuple[str, ...] = ()  # what was asked for and not done as asked


@dataclass(frozen=True, kw_only=True, slots=True)
class _StepSpec:
    """What make_step was asked for, checked and with the defaults filled in."""

    name: str
    config: PreTrainedConfig
    kind: ModelKind
    mode: Mode
    batch: int
    seq: int
    device: torch.device
    dtype: torch.dtype
    optimizer: str
    notes: tuple[str, ...]

    def build(self) -> PreTrainedModel:
        model = build_model(self.config, device=self.device, dtype=self.dtype, kind=self.kind)
        return cast("PreTrainedModel", model.train(self.mode == "train"))

    def build_for_shapes(self) -> PreTrainedModel:
        # in bfloat16, because a mixture of experts has no other shapes on meta
        model = build_model(self.config, device="meta", dtype="bfloat16", kind=self.kind)
        return cast("PreTrainedModel", model.train(False))

    def inputs(self, *, seq: int | None = None) -> Inputs:
        return make_inputs(
            self.kind,
            self.config,
            batch=self.batch,
            seq=self.seq if seq is None else seq,
            device=self.device,
            dtype=self.dtype,
            labels=self.mode == "train",
        )


def make_step(
    target: str | Preset | PreTrainedConfig,
    *,
    mode: str = "train",
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "meta",
    optimizer: str | None = None,
    small: bool = False,
    with_state: bool = True,
) -> Step:
    """A step of a preset (or its name) or of any transformers config.

    ``train``: forward, loss, backward, optimizer step, gradients dropped. ``forward``: the logits of every position,
    without gradients. ``prefill``: forward that fills a key-value cache and gives the last position's logits.
    ``decode``: one more token after ``seq`` cached ones. None takes the preset's default (dtype: bfloat16, on CPU
    float32; optimizer: adamw). ``small`` takes the preset's reduced shapes; ``with_state`` gives the optimizer its
    state beforehand. Raises TargetError for what cannot be.
    """
    spec = _checked_spec(
        target, mode=mode, batch=batch, seq=seq, dtype=dtype, device=device, optimizer=optimizer, small=small
    )
    if spec.mode == "train":
        return _train(spec, with_state=with_state)
    if spec.mode == "decode":
        return _decode(spec)
    return _forward(spec)


def guarded(run: Callable[[], Any], *, prefer: Path | None = None) -> Callable[[], Any]:
    """``run`` with whatever it raises told in one line as RunFailed, the original chained; see told_in_one_line."""

    def step() -> Any:
        try:
            return run()
        except RunFailed:
            raise
        except (Exception, SystemExit) as error:
            raise RunFailed(f"the step failed: {told_in_one_line(error, prefer=prefer)}") from error

    return step


def _quietly(run: Callable[[], Any]) -> Callable[[], Any]:
    def step() -> Any:
        with quiet_transformers():
            return run()

    return step


def _checked_spec(
    target: str | Preset | PreTrainedConfig,
    *,
    mode: str,
    batch: int | None,
    seq: int | None,
    dtype: str | torch.dtype | None,
    device: str | torch.device,
    optimizer: str | None,
    small: bool,
) -> _StepSpec:
    chosen = preset_named(target) if isinstance(target, str) else target
    notes: list[str] = []
    default_batch, default_seq = DEFAULT_BATCH, DEFAULT_SEQ
    if isinstance(chosen, Preset):
        config, kind, name = (chosen.small() if small else chosen.config()), chosen.kind, chosen.name
        name = f"{name} (reduced)" if small else name
        default_batch, default_seq = chosen.batch, chosen.seq
    elif small:
        raise TargetError("small is for presets: a config has no reduced shapes")
    else:
        config, kind, name = chosen, kind_of(chosen), str(chosen.model_type)
    checked = _checked_mode(mode, kind, name)
    if kind == "vision" and seq is not None:
        notes.append(f"seq {seq} ignored: {name} takes images")
    if checked != "train" and optimizer not in (None, "none"):
        notes.append(f"optimizer {optimizer} ignored: mode {checked} has none")
    limit = seq_limit(kind, config)
    if seq is None and limit is not None:  # a default gives way to the model, a length that was asked for does not
        default_seq = min(default_seq, limit - 1 if checked == "decode" else limit)
    length, cut = _checked_seq(default_seq if seq is None else seq, limit, kind=kind, mode=checked, name=name)
    if cut:
        notes.append(cut)
    place = torch_device(device)
    return _StepSpec(
        name=name,
        config=config,
        kind=kind,
        mode=checked,
        batch=_at_least_one("batch", default_batch if batch is None else batch),
        seq=length,
        device=place,
        dtype=torch_dtype(dtype or ("float32" if place.type == "cpu" else "bfloat16")),
        optimizer=optimizer or "adamw",
        notes=tuple(notes),
    )


def _checked_mode(mode: str, kind: ModelKind, name: str) -> Mode:
    for known in MODES["causal-lm"]:  # the kind that has them all
        if mode == known:
            if known not in MODES[kind]:
                raise TargetError(f"{name} ({kind}) has no mode {mode}: use {' or '.join(MODES[kind])}")
            return known
    raise TargetError(f'unknown mode "{mode}": use one of {", ".join(MODES["causal-lm"])}')


def _at_least_one(what: str, value: int) -> int:
    if value < 1:
        raise TargetError(f"{what} is {value}: it must be at least 1")
    return value


def _checked_seq(seq: int, limit: int | None, *, kind: ModelKind, mode: Mode, name: str) -> tuple[int, str]:
    """The sequence to run, and a note where it is not the one wanted."""
    _at_least_one("seq", seq)
    needed = seq + 1 if mode == "decode" else seq  # the new token takes a position too
    if limit is None or needed <= limit:
        return seq, ""
    if kind == "audio":  # the length of a transcript is the model's, not the user's, choice
        return limit, f"seq {seq} cut to {limit}: {name} decodes at most {limit} tokens"
    extra = " and the new token" if mode == "decode" else ""
    raise TargetError(f"seq {seq}{extra} is too long for {name}: it has {limit} positions")


def _step(
    spec: _StepSpec,
    run: Callable[[], Any],
    *,
    model: nn.Module,
    what: str,
    tokens: int | None,
    optimizer: Optimizer | None = None,
) -> Step:
    dtype = str(spec.dtype).removeprefix("torch.")
    return Step(
        run=guarded(_quietly(run)),
        model=model,
        optimizer=optimizer,
        description=f"{spec.name}: {what}, {dtype}{f', {TITLES[spec.optimizer]}' if spec.mode == 'train' else ''}",
        mode=spec.mode,
        batch=spec.batch,
        seq=None if spec.kind == "vision" else spec.seq,
        tokens=tokens,
        dtype=dtype,
        device=str(spec.device),
        notes=spec.notes,
    )


def _train(spec: _StepSpec, *, with_state: bool) -> Step:
    model = spec.build()
    inputs = spec.inputs()
    optimizer = make_optimizer(spec.optimizer, model, with_state=with_state)
    call = _full_sequence(model, spec, inputs)

    def run() -> Tensor:
        loss: Tensor = call().loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        return loss

    what = f"training step, {inputs.sizes}"
    return _step(spec, run, model=model, optimizer=optimizer, what=what, tokens=inputs.tokens)


def _forward(spec: _StepSpec) -> Step:
    torch = need_torch()
    model = spec.build()
    inputs = spec.inputs()
    call = _prefill(model, inputs) if spec.mode == "prefill" else _full_sequence(model, spec, inputs)

    def run() -> Any:
        with torch.no_grad():
            return call()

    return _step(spec, run, model=model, what=f"{spec.mode} pass, {inputs.sizes}", tokens=inputs.tokens)


def _full_sequence(model: PreTrainedModel, spec: _StepSpec, inputs: Inputs) -> Callable[[], Any]:
    """A call without cache: all positions at once, attention through its causal flag and not through a mask."""
    arguments: dict[str, Any] = dict(inputs.arguments)
    accepted = inspect.signature(model.forward).parameters
    if "use_cache" in accepted:
        arguments["use_cache"] = False
    if spec.kind in ("causal-lm", "audio") and "past_key_values" in accepted:
        from rooflight.workloads.caches import passing_cache

        cache = passing_cache(model.config)
        if cache is not None:
            arguments["past_key_values"] = cache
    return lambda: model(**arguments)


def _prefill(model: PreTrainedModel, inputs: Inputs) -> Callable[[], Any]:
    arguments: dict[str, Any] = {**inputs.arguments, "use_cache": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        arguments["logits_to_keep"] = 1  # as generate does
    return lambda: model(**arguments)


def _decode(spec: _StepSpec) -> Step:
    from rooflight.workloads.caches import held_cache

    torch = need_torch()
    model = spec.build()
    shapes = model if spec.device.type == "meta" else spec.build_for_shapes()
    argument, cache = held_cache(shapes, batch=spec.batch, seq=spec.seq, device=spec.device, dtype=spec.dtype)
    inputs = spec.inputs(seq=1)

    def run() -> Any:
        with torch.no_grad():
            return model(**inputs.arguments, **{argument: cache()}, use_cache=True)

    what = f"decode step, batch {spec.batch}, {spec.seq} tokens cached"
    return _step(spec, run, model=model, what=what, tokens=spec.batch)
