"""A step of a model: a zero-argument function, one call of which can be recorded or timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.workloads.build import TITLES, make_optimizer, quiet_transformers
from rooflight.sources.workloads.classes import StepName
from rooflight.sources.workloads.errors import STEP_FAILED, RunFailed, TargetError, in_one_line, need_torch
from rooflight.sources.workloads.presets import Preset
from rooflight.sources.workloads.specs import StepSpec, checked_spec
from rooflight.sources.workloads.tensors import Inputs

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from transformers import PreTrainedConfig, PreTrainedModel


_PLAIN: Final = "_rooflight_unguarded"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step: call ``run``; it may be called any number of times and raises RunFailed when the step fails."""

    run: Callable[[], Any] = field(repr=False)
    model: nn.Module | None = field(repr=False, default=None)
    optimizer: Optimizer | None = field(repr=False, default=None)
    description: str  # one line: what runs, how much, in which format
    name: StepName | None = None  # None: the user's own step
    batch: int | None = None
    seq: int | None = None
    tokens: int | None = None  # processed per step; None for a model without tokens, or where it is not known
    dtype: str | None = None
    device: str | None = None
    notes: tuple[str, ...] = ()  # what was not done as the config says
    reads_values: bool = (
        False  # its work depends on the values of its tensors: recorded on meta it would be another step
    )
    has_run: bool = False  # once, so that what it makes on first use is there

    @property
    def model_class(self) -> str:
        """The name of the model's class; empty for a step without a model."""
        return "" if self.model is None else type(self.model).__name__


def make_step(
    target: str | Preset | PreTrainedConfig,
    *,
    name: str = "",
    step: str = "train",
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "meta",
    optimizer: str | None = None,
    small: bool = False,
    with_state: bool = True,
) -> Step:
    """A step of a preset (or its name) or of any transformers config, which is built as the class that it names.

    ``train``: forward, loss, backward, optimizer step, gradients dropped. ``forward``: the logits of every position,
    without gradients. ``prefill``: forward that fills a key-value cache and gives the last position's logits.
    ``decode``: one more token after ``seq`` cached ones. None takes the preset's default (dtype: bfloat16, on CPU
    float32; optimizer: adamw). ``small`` takes the preset's reduced shapes; ``with_state`` gives the optimizer its
    state beforehand. ``name`` is that of a config, otherwise its model_type. Raises TargetError for impossible options.
    """
    spec = checked_spec(
        target, name=name, step=step, batch=batch, seq=seq, dtype=dtype, device=device, optimizer=optimizer, small=small
    )
    if spec.step == "train":
        return _train(spec, with_state=with_state)
    if spec.step == "decode":
        return _decode(spec)
    return _forward(spec)


def guarded(run: Callable[[], Any], *, prefer: Path | None = None) -> Callable[[], Any]:
    """``run``, but its errors become a RunFailed in one line (``in_one_line``), with the original chained."""

    @wraps(run)
    def step() -> Any:
        try:
            return run()
        except (RunFailed, TargetError):
            raise
        except (Exception, SystemExit) as error:
            raise RunFailed(f"{STEP_FAILED}{in_one_line(error, prefer=prefer)}") from error

    setattr(step, _PLAIN, run)  # what a compiler takes
    return step


def unguarded(run: Callable[[], Any]) -> Callable[[], Any]:
    """What ``guarded`` was given, with its own decorators, such as ``torch.no_grad``; any other as it is."""
    return getattr(run, _PLAIN, run)


def _quietly(run: Callable[[], Any], spec: StepSpec) -> Callable[[], Any]:
    def step() -> Any:
        with quiet_transformers(), _without_value_checks(spec):
            try:
                return run()
            except RuntimeError as error:
                if spec.device.type == "meta" and "overflow" in str(error).lower():
                    raise TargetError(_too_large(spec)) from error
                raise

    return step


def _too_large(spec: StepSpec) -> str:
    length = f" and seq {spec.seq}" if spec.has_seq else ""
    return f"batch {spec.batch}{length} make a tensor of more bytes than torch can count: take less"


@contextmanager
def _without_value_checks(spec: StepSpec) -> Iterator[None]:
    switch = "TRANSFORMERS_DISABLE_TORCH_CHECK"
    if spec.device.type != "meta" or switch in os.environ:
        yield
        return
    os.environ[switch] = "1"
    try:
        yield
    finally:
        del os.environ[switch]


def _step(
    spec: StepSpec,
    run: Callable[[], Any],
    *,
    model: nn.Module,
    what: str,
    tokens: int | None,
    optimizer: Optimizer | None = None,
) -> Step:
    dtype = str(spec.dtype).removeprefix("torch.")
    return Step(
        run=guarded(_quietly(run, spec)),
        model=model,
        optimizer=optimizer,
        description=f"{spec.name}: {what}, {dtype}{f', {TITLES[spec.optimizer]}' if spec.step == 'train' else ''}",
        name=spec.step,
        batch=spec.batch,
        seq=spec.seq if spec.has_seq else None,
        tokens=tokens,
        dtype=dtype,
        device=str(spec.device),
        notes=spec.notes,
        reads_values=spec.reads_values,
    )


def _train(spec: StepSpec, *, with_state: bool) -> Step:
    model = spec.build()
    inputs = _made(spec)
    optimizer = make_optimizer(spec.optimizer, model, with_state=with_state)
    call = _full_sequence(model, spec, inputs)

    def run() -> Tensor:
        loss: Tensor | None = call().loss
        if loss is None:
            raise TargetError(f"{spec.chosen.name} computed no loss: use --step forward")
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        return loss

    what = f"training step, {inputs.sizes}"
    return _step(spec, run, model=model, optimizer=optimizer, what=what, tokens=inputs.tokens)


def _forward(spec: StepSpec) -> Step:
    torch = need_torch()
    model = spec.build()
    inputs = _made(spec)
    call = _prefill(model, inputs, spec) if spec.step == "prefill" else _full_sequence(model, spec, inputs)

    def run() -> Any:
        with torch.no_grad():
            return call()

    return _step(spec, run, model=model, what=f"{spec.step} pass, {inputs.sizes}", tokens=inputs.tokens)


def _made(spec: StepSpec, *, seq: int | None = None) -> Inputs:
    try:
        return spec.inputs(seq=seq)
    except RuntimeError as error:
        if "overflow" in str(error).lower():
            raise TargetError(_too_large(spec)) from error
        raise


def _full_sequence(model: PreTrainedModel, spec: StepSpec, inputs: Inputs) -> Callable[[], Any]:
    """A call without cache: all positions at once, attention with its causal flag and not with a mask."""
    arguments: dict[str, Any] = dict(inputs.arguments)
    accepted = spec.chosen.accepted
    if "use_cache" in accepted:
        arguments["use_cache"] = False
    if spec.chosen.kind not in ("seq2seq-lm", "masked-lm") and "past_key_values" in accepted:
        from rooflight.sources.workloads.caches import passing_cache

        cache = passing_cache(model.config)
        if cache is not None:
            arguments["past_key_values"] = cache
    if spec.device.type == "meta":
        _take_positions_from_the_host(model)
    return lambda: model(**arguments)


def _take_positions_from_the_host(model: PreTrainedModel) -> None:
    """Let rotary embeddings on meta take positions computed on the CPU, from the grid of an image's patches."""

    def moved(
        _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        torch = need_torch()

        def to_meta(value: Any) -> Any:
            return value.to("meta") if isinstance(value, torch.Tensor) else value

        return tuple(map(to_meta, arguments)), {name: to_meta(value) for name, value in named.items()}

    for module in model.modules():
        if "Rotary" in type(module).__name__:
            module.register_forward_pre_hook(moved, with_kwargs=True)


def _prefill(model: PreTrainedModel, inputs: Inputs, spec: StepSpec) -> Callable[[], Any]:
    arguments: dict[str, Any] = {**inputs.arguments, "use_cache": True}
    if "logits_to_keep" in spec.chosen.accepted:
        arguments["logits_to_keep"] = 1  # as generate does
    return lambda: model(**arguments)


def _decode(spec: StepSpec) -> Step:
    from rooflight.sources.workloads.caches import held_cache

    torch = need_torch()
    model = spec.build()
    shapes = model if spec.device.type == "meta" else spec.build_for_shapes()
    argument, cache = held_cache(shapes, batch=spec.batch, seq=spec.seq, device=spec.device, dtype=spec.dtype)
    inputs = _made(spec, seq=1)

    def run() -> Any:
        with torch.no_grad():
            return model(**inputs.arguments, **{argument: cache()}, use_cache=True)

    what = f"decode step, batch {spec.batch}, {spec.seq} tokens cached"
    return _step(spec, run, model=model, what=what, tokens=spec.batch)
