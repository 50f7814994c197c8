"""Models with random weights, or with none at all: on the meta device the largest takes milliseconds and no memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rooflight.records.dtypes import dtype_name
from rooflight.workloads.errors import TargetError
from rooflight.workloads.extras import need_torch, need_transformers
from rooflight.workloads.preset import AUTO_CLASSES, ModelKind

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

_FLOATING: Final = ("float32", "bfloat16", "float16", "float64")

# A model may be in several of transformers' lists (BART is in three): the first that holds it wins.
_KIND_ORDER: Final[tuple[ModelKind, ...]] = ("audio", "seq2seq", "vision", "encoder", "causal-lm")


def build_model(
    config: PreTrainedConfig,
    *,
    device: str | torch.device,
    dtype: str | torch.dtype,
    attn: str = "sdpa",
    kind: ModelKind | None = None,
) -> PreTrainedModel:
    """The model of a transformers config, all parameters in ``dtype``, on ``device``; the config is not changed.

    On meta nothing is allocated or initialised. Elsewhere the weights are the architecture's own random
    initialisation, the same on every call. ``attn`` is left to transformers where the architecture has no such
    implementation. Experts of a mixture run as grouped matmuls, the only implementation whose shapes do not depend on
    where the tokens go. Raises TargetError when transformers has no model for the config.
    """
    place = torch_device(device)
    config = copy.deepcopy(config)
    model_class = _model_class(config, kind or kind_of(config))
    options: dict[str, Any] = {"dtype": torch_dtype(dtype)}
    if attn != "sdpa" or getattr(model_class, "_supports_sdpa", False):
        options["attn_implementation"] = attn
    try:
        with quiet_transformers(), place, _initialisation(place):
            model: PreTrainedModel = model_class._from_config(config, **options)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TargetError(f"transformers cannot build {model_class.__name__}: {reason}") from error
    if place.type == "meta":
        model.tie_weights()  # part of the initialisation that was skipped
        if model.config._experts_implementation == "grouped_mm" and model.dtype != need_torch().bfloat16:
            raise TargetError(
                "a mixture of experts on meta needs dtype bfloat16: torch has no other grouped matmul there"
            )
    return model


def kind_of(config: PreTrainedConfig) -> ModelKind:
    """What kind of model a config describes. Raises TargetError when it is none that a step can be made for."""
    kinds = [kind for kind in _KIND_ORDER if type(config) in _mapping(kind)]
    architecture = next(iter(config.architectures or ()), "")
    if "causal-lm" in kinds and architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal-lm"
    if not kinds:
        raise TargetError(
            f'no step is known for model_type "{config.model_type}": it is no language model, image classifier or'
            " speech model; write your own step and pass path/to/train.py:make_step"
        )
    return kinds[0]


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
    """The device named. Raises TargetError for one that torch does not know or this machine does not have."""
    library = need_torch()
    try:
        place: torch.device = library.device(device)
    except RuntimeError as error:
        raise TargetError(f'unknown device "{device}": use meta, cpu or cuda') from error
    if place.type == "cuda" and not library.cuda.is_available():
        raise TargetError('no CUDA device here: use device "meta" to analyse without one, or "cpu"')
    return place


def _mapping(kind: ModelKind) -> Any:
    return getattr(need_transformers(), AUTO_CLASSES[kind])._model_mapping


def _model_class(config: PreTrainedConfig, kind: ModelKind) -> Any:
    mapping = _mapping(kind)
    if type(config) not in mapping:
        raise TargetError(f'transformers has no {kind} model for model_type "{config.model_type}"')
    found = mapping[type(config)]
    return found[0] if isinstance(found, (tuple, list)) else found


@contextmanager
def _initialisation(place: torch.device) -> Iterator[None]:
    """On meta none; elsewhere always the same numbers, without touching the program's random state."""
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
    """Without transformers' advice about generation and kernels, which one who asks for a bound cannot act on."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
