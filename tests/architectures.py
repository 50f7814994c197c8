"""Records a training step, or a forward pass, of many architectures, and prints what became of each, a line of JSON:

    python tests/architectures.py transformers|timm PART PARTS [NAME...]

``wrong`` says what must not be, ``refused`` why a step of it cannot be made or run without hardware. Those of
transformers have their own default sizes with two layers; of each family of timm the first model is taken.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

import rooflight as rl
from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.steps import make_step

LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depth"),
    *("num_encoder_layers", "num_decoder_layers", "encoder_num_layers", "decoder_num_layers"),
    *("num_hidden_groups", "num_blocks", "num_hidden_blocks"),
)
TRIED = ((True, "train", 64), (True, "train", None), (True, "forward", None), (False, "forward", None))
"""Two layers or all, the mode, and the length of a sequence: the first that works is recorded."""

ROUNDING = 1 + 1e-9


def fault_of(session: rl.Session) -> str:
    """What is wrong with a recording's analysis: work without a cost, or bounds in the wrong order."""
    analysis = rl.analyze(session, "H100-SXM5-80GB")
    program = analysis.program
    bounds = program.program_bound_s, program.fused_bound_s, analysis.totals.op_bound_s
    if analysis.coverage.calls != 1:
        return f"not covered: {[(op.name, op.reason) for op in analysis.coverage.uncosted]}"
    is_nested = 0 < bounds[0] <= bounds[1] * ROUNDING <= bounds[2] * ROUNDING**2
    return "" if is_nested else f"program, fused and op bound are not in order: {bounds}"


def shrink(config: Any) -> None:
    """Give the config and its parts two layers, where they count layers."""
    for name in LAYERS:
        with suppress(Exception):  # some configs refuse
            if getattr(config, name) > 2:
                setattr(config, name, 2)
    for part in getattr(config, "sub_configs", {}):
        if hasattr(inner := getattr(config, part, None), "to_dict"):
            shrink(inner)


def default_config(kind: Any) -> Any:
    try:
        return kind()
    except Exception as error:
        raise TargetError(f"transformers refuses its own defaults: {error}") from error


def of_transformers(name: str) -> rl.Session:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for small, mode, seq in (
        (True, "train", 64),
        (True, "train", None),
        (True, "forward", None),
        (False, "forward", None),
    ):
        try:
            config = default_config(CONFIG_MAPPING[name])
            if small:
                shrink(config)
            step = make_step(config, step=mode, batch=2, seq=seq)
            with rl.record(step.model, memory=True) as recording:
                step.run()
            return recording.session
        except (TargetError, RunFailed) as error:
            refused = error
    raise refused


BUILT_ON_CPU = "csatv2", "efficientvit_mit", "gemma4_vit", "regnet"
RUN_ON_CPU = ("efficientvit_mit",)
"""Families of timm that read values while they are built, or whose forward pass asks for autocast on meta."""

_kept: list[Any] = []


def of_timm(family: str, name: str) -> rl.Session:
    import timm

    with torch.device("cpu" if family in BUILT_ON_CPU else "meta"):
        model = timm.create_model(name)
    place = "cpu" if family in RUN_ON_CPU else "meta"
    model, image = model.to(place), torch.empty(2, *model.default_cfg["input_size"], device=place)
    with rl.record(model, memory=True) as recording:
        out = model(image)
        (out[0] if isinstance(out, list | tuple) else out).sum().backward()
    return recording.session


def families() -> dict[str, Callable[[], rl.Session]]:
    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # its ops are compiled for another build of torch, and timm's models use none of them
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for op in ("nms", "qnms"):
            library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)  # gone with it are its ops
    import timm  # noqa: F401
    from timm.models._registry import _module_to_models

    return {family: partial(of_timm, family, min(names)) for family, names in _module_to_models.items()}


def architectures(library: str) -> dict[str, Callable[[], rl.Session]]:
    if library == "timm":
        return families()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return {name: partial(of_transformers, name) for name in CONFIG_MAPPING.keys()}  # noqa: SIM118 (it iterates anew)


def outcomes(library: str, part: int, parts: int, names: list[str]) -> Iterator[dict[str, str]]:
    known = architectures(library)
    chosen = names or sorted(known)[part::parts]
    for number, name in enumerate(chosen, start=1):
        print(f"\r{library} {number} of {len(chosen)} {name[:60]:60}", end="", file=sys.stderr, flush=True)
        wrong = refused = ""
        try:
            wrong = fault_of(known[name]())
        except (TargetError, RunFailed) as error:
            refused = str(error)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        yield {"name": name, "wrong": wrong, "refused": refused}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for outcome in outcomes(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]):
        print(json.dumps(outcome), flush=True)
