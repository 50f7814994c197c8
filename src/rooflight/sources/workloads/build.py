"""Models with random weights, or without, and their optimizers.

On the meta device the largest model takes milliseconds and no memory. Optimizers have the form that CUDA runs by
default, also where torch would choose another (CPU) or none (meta).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from rooflight.records.dtypes import dtype_name
from rooflight.records.quantity import Quantity
from rooflight.sources.workloads.classes import ChosenClass, ModelKind, class_of
from rooflight.sources.workloads.errors import TargetError, first_words, need_torch

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer
    from transformers import PreTrainedConfig, PreTrainedModel


_FLOATING: Final = ("float32", "bfloat16", "float16", "float64")

_MOST_PARAMETERS: Final = 10**15  # a thousand times the largest model; of more, 64 bits cannot count the bytes

_RANDOM_WORK: Final = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "apply_spec_augment")


def build_model(
    config: PreTrainedConfig,
    *,
    device: str | torch.device,
    dtype: str | torch.dtype,
    attn: str = "sdpa",
    chosen: ChosenClass | None = None,
) -> PreTrainedModel:
    """The model of a transformers config, all parameters in ``dtype``, on ``device``; the config is not changed.

    On meta nothing is allocated or initialised. Elsewhere the weights are the architecture's own random initialisation,
    the same on every call. If the architecture does not have the implementation ``attn``, transformers chooses one.
    Experts of a mixture run as grouped matmuls, the only implementation whose shapes do not depend on which experts the
    tokens go to. Without ``chosen``, the class is the one that the config names. Raises TargetError when transformers
    has no model for the config, or cannot build it.
    """
    place = torch_device(device)
    model_class = (chosen or class_of(config)).model_class
    options: dict[str, Any] = {"dtype": torch_dtype(dtype)}
    if attn != "sdpa" or getattr(model_class, "_supports_sdpa", False):
        options["attn_implementation"] = attn
    try:
        with quiet_transformers(), place, _initialisation(place):
            model = _with_attention(model_class, config, options)
    except Exception as error:  # a model's own code may raise any error for unusual sizes
        raise TargetError(_reason_against(model_class, error, config, place)) from error
    if place.type == "meta":
        model.tie_weights()  # part of the initialisation that was skipped
        numbers = sum(parameter.numel() for parameter in model.parameters())
        if numbers > _MOST_PARAMETERS:
            raise TargetError(
                f"{model_class.__name__} is too large: {numbers:.2e} parameters, at most {_MOST_PARAMETERS:.0e} can be"
            )
        experts = getattr(model.config, "_experts_implementation", None)
        if experts == "grouped_mm" and model.dtype != need_torch().bfloat16:
            raise TargetError(
                "a mixture of experts on meta needs dtype bfloat16 (--dtype bf16): torch has no other grouped matmul"
            )
    return model


def _with_attention(model_class: Any, config: PreTrainedConfig, options: dict[str, Any]) -> PreTrainedModel:
    try:
        model: PreTrainedModel = model_class._from_config(copy.deepcopy(config), **options)
    except ValueError as error:
        if options.get("attn_implementation") != "sdpa" or "attention implementation" not in str(error):
            raise
        # a part of the model has no such attention (the backbone of DETR): transformers chooses for each part
        options = {name: value for name, value in options.items() if name != "attn_implementation"}
        model = model_class._from_config(copy.deepcopy(config), **options)
    return model


def steady(config: PreTrainedConfig, kind: ModelKind) -> tuple[PreTrainedConfig, list[str]]:
    """A copy of the config with which every training step does the same work, and the settings that it leaves out for
    this: those that skip layers or mask spans at random.
    """
    config = copy.deepcopy(config)
    left_out = [name for name in _RANDOM_WORK if getattr(config, name, None)]
    for name in left_out:
        setattr(config, name, type(getattr(config, name))())  # 0.0 or False
    if kind == "sequence-classification" and getattr(config, "pad_token_id", None) is None:
        # decoders classify the last token that is no padding; which one that is does not change their work
        config.pad_token_id = 0
    return config, left_out


def torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A dtype that weights can have, given as torch has it or by name (``bf16``). Raises TargetError for others."""
    try:
        name = dtype_name(str(dtype))
    except ValueError as error:
        raise TargetError(str(error)) from error
    if name not in _FLOATING:
        raise TargetError(f'weights cannot be built as "{dtype}": use one of {", ".join(_FLOATING)}')
    chosen: torch.dtype = getattr(need_torch(), name)
    return chosen


def torch_device(device: str | torch.device) -> torch.device:
    """The device of that name. Raises TargetError for one that torch does not support or this machine does not have."""
    library = need_torch()
    try:
        place: torch.device = library.device(device)
    except RuntimeError as error:
        raise TargetError(f'unknown device "{device}": use meta, cpu or cuda') from error
    if place.type == "cuda" and not library.cuda.is_available():
        raise TargetError('no CUDA device here: use device "meta" to analyse without one, or "cpu"')
    return place


def _reason_against(model_class: Any, error: Exception, config: PreTrainedConfig, place: torch.device) -> str:
    name, text = model_class.__name__, str(error)
    if place.type != "meta" and any(words in text for words in ("allocate memory", "out of memory")):
        empty = build_model(
            config, device="meta", dtype="bfloat16", chosen=ChosenClass(model_class=model_class, kind="base")
        )
        numbers = sum(parameter.numel() for parameter in empty.parameters())
        size = Quantity(2 * numbers, "B")
        return (
            f"{name} does not fit into memory: it has {numbers:,} parameters, {size} in bfloat16; --device NAME, with "
            "the name of another device, bounds it without memory"
        )
    if "overflow" in text.lower():
        return f"{name} is too large: its sizes are more than torch can address"
    reason = first_words(text) or "no reason given"
    if not isinstance(error, (ValueError, RuntimeError, ImportError)):  # the texts of others are no sentences
        reason = f"{type(error).__name__}: {reason}"
    return f"transformers cannot build {name}: {reason}"


@contextmanager
def _initialisation(place: torch.device) -> Iterator[None]:
    """On meta none, elsewhere always the same numbers; the program's random state stays as it is."""
    if place.type == "meta":
        from transformers.initialization import no_init_weights

        with no_init_weights():
            yield
        return
    torch = need_torch()
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(0)
        yield


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' advice about generation and kernels, which is of no use to a user who asks for a bound."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


OptimizerName = Literal["adamw", "adamw-fused", "sgd", "none"]

TITLES: Final[dict[str, str]] = {
    "adamw": "AdamW (foreach)",
    "adamw-fused": "AdamW (fused)",
    "sgd": "SGD (foreach)",
    "none": "no optimizer",
}


def make_optimizer(name: str, model: nn.Module, *, with_state: bool = True) -> Optimizer | None:
    """The optimizer named over all parameters of the model; None for "none".

    ``with_state`` creates the state that the first step would, so that the first recorded step is a steady one.
    """
    if name not in get_args(OptimizerName):
        raise TargetError(f'unknown optimizer "{name}": use one of {", ".join(get_args(OptimizerName))}')
    if name == "none":
        return None
    optim = need_torch().optim
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: Optimizer
    if name == "sgd":
        optimizer = optim.SGD(parameters, lr=1e-4, foreach=True)
        return optimizer  # without momentum it has no state
    # a loop over parameters is what torch would choose on CPU and meta
    optimizer = optim.AdamW(parameters, lr=1e-4, foreach=True)
    if name == "adamw-fused":
        for group in optimizer.param_groups:  # the constructor refuses meta parameters
            group["fused"], group["foreach"] = True, False
    if with_state:
        _create_adamw_state(optimizer, fused=name == "adamw-fused")
    return optimizer


def _create_adamw_state(optimizer: Optimizer, *, fused: bool) -> None:
    torch = need_torch()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                # the fused kernel reads the step on the device, the others in Python
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu"),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
