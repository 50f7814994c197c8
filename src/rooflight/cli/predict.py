"""``rooflight predict``: how long an operator would take, also on a device that is not in this machine."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rooflight.cli import completion
from rooflight.cli.options import Output
from rooflight.front.options import WhatIfOptions

if TYPE_CHECKING:
    from rooflight.costs.operators.operator import Operator

_DIGITS: Final = 20
"""Of 2**63 - 1 with its sign; longer numbers are refused before anything computes with them."""


def predict(
    context: typer.Context,
    operator: Annotated[
        str,
        typer.Argument(
            metavar="OPERATOR",
            help="An operator (see: rooflight sample --list), my_ops.py:my_op, or a sampled function of yours.",
            autocompletion=completion.operators,
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Predict for this device (see: rooflight devices); cpu, cuda: this machine's.  [required]",
            autocompletion=completion.devices,
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="bf16, fp16, fp32, ...", autocompletion=completion.dtypes)
    ] = "bf16",
    models: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder that rooflight fit wrote. [default: the shipped models]"),
    ] = None,
    *,
    supposed: WhatIfOptions,
    output: Output,
) -> None:
    """Predict the time of an operator at a shape, from the models that come with Rooflight or those of rooflight fit.

    The shape is given as options named after the operator's parameters, such as --m 4096 --n 4096 --k 4096.

    A prediction never beats the bound. Nine in ten times lie in its interval for shapes and devices like those sampled;
    for others the interval is wider, and the source says extrapolated. The same holds with --precision and --clock,
    since models learned from devices with their own precisions and clocks.

    \b
      rooflight sample --list gemm
      rooflight predict gemm --m 4096 --n 4096 --k 4096 --device H100-SXM5-80GB
      rooflight predict gemm --m 512 --n 512 --k 512 --device cpu --models models
    """
    from rooflight.cli.progress import spinner
    from rooflight.costs.operators.registry import operators_of
    from rooflight.front.device import find_what_if
    from rooflight.prediction.predictor import Predictor
    from rooflight.prediction.tables import report_of

    predictor = Predictor.load(models) if models else Predictor()
    sampled = predictor.operator(operator)
    described, *others = (sampled,) if sampled else operators_of(operator)
    if others:
        raise ValueError(f"{operator} registers several operators: name one, as in {operator}:{described.name}")
    shape = _shape(context, described)
    if device is None:
        raise ValueError("--device NAME is missing: rooflight devices lists those known")
    roofs = supposed.roofs()
    outputs = output.open()
    with spinner() as progress:
        spec = find_what_if(device, roofs, progress=progress)
    estimates = predictor.predict_shape(described.name, shape, dtype, spec)
    outputs.write(report_of(described.name, shape, dtype, spec, estimates))


def _shape(context: typer.Context, operator: Operator) -> dict[str, int]:
    """``--m 4096 --n=8``, the words that are no options of the verb, as a shape. Raises ValueError for all others."""
    words = [part for word in context.args for part in (word.split("=", 1) if word.startswith("--") else [word])]
    shape: dict[str, int] = {}
    for name, value in zip(words[::2], [*words[1::2], ""], strict=False):
        parameter = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--"):
            raise ValueError(f"{name}: give each parameter of the shape as --name number")
        if parameter not in operator.parameters:
            raise ValueError(f"{name}: {_nearest(name, context, operator)}")
        if not re.fullmatch(r"-?[0-9]+", value):
            raise ValueError(f"{name} {value}".strip() + f": give a whole number, as in {name} 4096")
        if len(value) > _DIGITS:
            raise ValueError(f"{name} {value[:20]}...: too large, torch counts to 2**63 - 1")
        if parameter in shape:
            raise ValueError(f"--{parameter} is given twice")
        shape[parameter] = int(value)
    return shape


def _nearest(name: str, context: typer.Context, operator: Operator) -> str:
    options = [option[2:] for parameter in context.command.params for option in parameter.opts if option[:2] == "--"]
    close = get_close_matches(name[2:], [*operator.parameters, *options], n=2)
    if close:
        return f"did you mean {' or '.join(f'--{each}' for each in close)}?"
    return f"{operator.name} has no such parameter, it has {', '.join(f'--{each}' for each in operator.parameters)}"
