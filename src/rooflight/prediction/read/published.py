"""Published tables: NeuSight's of several GPUs, and Vidur's of layers and of collectives. All forward only.

NeuSight's: one kind of work a file. Times are in ms, of float32 with TF32 off, from the host's call to the end of the
kernel, the same tensors time after time: with the launch, and with what fits a cache found there.

Vidur's layers: a row a number of tokens, with the times of every op of one layer of one model. Times are medians over
20 runs, in ms to 1 µs, of kernels alone; float16. The GPU is the name of a folder that the file lies in. Ops that torch
has not as one kernel (SiLU with its product, rotary embedding in place) are read under Vidur's own names, as are those
for which a file says too little. Its collectives: sizes in bytes of float16, medians of NCCL's kernels; the kind of
node is the name of a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rooflight.costs.operators import registry
from rooflight.hardware.devices import get
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.read.measured import (
    Integers,
    MeasuredTable,
    Sheet,
    columns_of,
    device_called,
    sheet_of,
    table_of,
)

Columns = Mapping[str, Integers]
Parameters = Callable[[Columns], dict[str, Integers]]
_MILLI: Final = 1e-3


@dataclass(frozen=True, slots=True)
class _Op:
    """Our operator, None where there is none of its kind; its parameters from the source's columns; which these are."""

    operator: str | None
    parameters: Parameters
    columns: tuple[str, ...] = ()


def _table(
    sheet: Sheet, kernel: str, op: _Op, columns: Columns, rows: Integers, device: DeviceSpec, precision: str, times: str
) -> MeasuredTable:
    operator = None if op.operator is None else registry.find(op.operator)
    return table_of(
        operator,
        op.parameters({name: values[rows] for name, values in columns.items()}),
        kernel=kernel,
        source=sheet.path,
        device=device,
        precision=precision,
        seconds=sheet.seconds(times, _MILLI)[rows, None],
        directions=("fwd",) if operator is None else operator.directions[:1],
        unit_s=_MILLI,
        lines=sheet.lines[rows],
        label=f"{sheet.path.parent.name} {kernel}",
    )


def _known(sheet: Sheet, column: str, value: str, rows: Integers, known: Mapping[str, _Op]) -> _Op:
    if value not in known:
        where = f"{sheet.path}, line {sheet.lines[rows[0]]}"
        raise ValueError(f'{where}: {column} is "{value[:40]}": it can be {", ".join(known)}')
    return known[value]


_OP, _DEVICE, _LATENCY = "OPName", "Device", "Latency"
_VECTOR: Final = ("B", "H")
_CONV: Final = ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding")


def _conv(sizes: Columns) -> dict[str, Integers]:
    """Images as high as wide, no bias."""
    names = ("b", "c_in", "c_out", "kernel", "height", "stride", "padding")
    return {**{name: sizes[column] for name, column in zip(names, _CONV, strict=True)}, "width": sizes["Input_Size"]}


def _vector(sizes: Columns) -> dict[str, Integers]:
    return {"rows": sizes["B"], "width": sizes["H"]}


_NEUSIGHT: Final[Mapping[str, _Op]] = {
    # [B, M, N] through a layer of N inputs and K outputs, with bias: the rows of B and M are one product's
    "linear": _Op(
        "linear", lambda of: {"rows": of["B"] * of["M"], "inputs": of["N"], "outputs": of["K"]}, tuple("BMNK")
    ),
    # [B, M, N] @ [B, N, K]
    "bmm": _Op("batched_mm", lambda of: {"b": of["B"], "m": of["M"], "n": of["K"], "k": of["N"]}, tuple("BMNK")),
    "conv": _Op("conv2d", _conv, _CONV),
    "ln": _Op("layernorm_rows", _vector, _VECTOR),
    "softmax": _Op("softmax_rows", _vector, _VECTOR),
    "gelu": _Op("gelu_rows", _vector, _VECTOR),
    **{name: _Op(name, _vector, _VECTOR) for name in ("add", "mul", "div", "pow", "relu", "tanh")},
    **{
        f"{name}u": _Op(name, lambda of: {**_vector(of), "scalar": np.ones_like(of["B"])}, _VECTOR)
        for name in ("add", "mul", "div", "pow")
    },
}


def is_neusight(_: Path, columns: Sequence[str]) -> bool:
    """Whether a file has NeuSight's columns."""
    return _OP in columns and (_LATENCY in columns or _DEVICE in columns)


def read_neusight(path: Path) -> tuple[MeasuredTable, ...]:
    """A table for each operator and device of a file."""
    named = {name for op in _NEUSIGHT.values() for name in op.columns}
    present = [name for name in columns_of(path) if name in named]
    sheet = sheet_of(path, (_OP, _DEVICE, _LATENCY, *present))
    sheet.seconds(_LATENCY, _MILLI)  # refused before anything else is looked at
    sizes = {name: sheet.sizes(name) for name in present}
    groups: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(sheet.cells[_OP], sheet.cells[_DEVICE], strict=True)):
        groups.setdefault(key, []).append(row)
    tables = []
    for (kernel, device), numbers in groups.items():
        rows = np.array(numbers, dtype=np.int64)
        op = _known(sheet, _OP, kernel, rows, _NEUSIGHT)
        if missing := [name for name in op.columns if name not in present]:
            raise ValueError(f"{path}, line 1: no column {', '.join(missing)}, which {kernel} needs")
        found = device_called(device, f"{path}, line {sheet.lines[rows[0]]}")
        columns = {name: sizes[name] for name in op.columns}
        tables.append(_table(sheet, kernel, op, columns, rows, found, "fp32", _LATENCY))
    return tuple(tables)


GPUS: Final[Mapping[str, str]] = {"a100": "A100-SXM4-80GB", "h100": "H100-SXM5-80GB", "a40": "A40"}
"""Vidur's names of GPUs. Only the memory of each is known; of the parts that have as much, the one with the highest
peaks, so that a bound is one on any of them."""
NODES: Final[Mapping[str, str]] = {
    "a100_dgx": "A100-SXM4-80GB",
    "h100_dgx": "H100-SXM5-80GB",
    "a100_pairwise_nvlink": "A100-PCIE-80GB",
    "h100_pairwise_nvlink": "H100-NVL-94GB",
    "a40_pairwise_nvlink": "A40",
}
"""What each kind of node is made of: where NVLink joins pairs, the parts that have it as a bridge between two."""
_TIMES, _MEDIAN = "time_stats.", ".median"
_TOKENS, _GATED, _WAYS = "num_tokens", "use_gated_mlp", "num_tensor_parallel_workers"
_SIZES: Final = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", _TOKENS, _WAYS)
_SECOND_NORM: Final = "post_attention_layernorm"


def _device_of_folder(path: Path, devices: Mapping[str, str], what: str) -> DeviceSpec:
    folder = next((name for name in reversed(path.absolute().parent.parts) if name in devices), None)
    if folder is None:
        raise ValueError(
            f"{path} does not name its {what}: keep it in the folder that Vidur has it in, one of {', '.join(devices)}"
        )
    return get(devices[folder])


def _rank(sizes: Columns, whole: Integers) -> Integers:
    return whole // sizes[_WAYS]


def _product(sizes: Columns, inputs: Integers, outputs: Integers) -> dict[str, Integers]:
    # which models have biases a file does not say; one is as many numbers as a row of the result
    return {"rows": sizes[_TOKENS], "inputs": inputs, "outputs": outputs, "bias": np.zeros_like(inputs)}


def _qkv(sizes: Columns) -> dict[str, Integers]:
    heads = sizes["n_head"] + 2 * sizes["n_kv_head"]
    return _product(sizes, sizes["n_embd"], _rank(sizes, heads * (sizes["n_embd"] // sizes["n_head"])))


def _up(sizes: Columns) -> dict[str, Integers]:
    """Of a gated MLP the gate and what it gates, in one product."""
    return _product(sizes, sizes["n_embd"], _rank(sizes, (1 + sizes[_GATED]) * sizes["n_expanded_embd"]))


def _rope(sizes: Columns) -> dict[str, Integers]:
    heads, kv_heads = _rank(sizes, sizes["n_head"]), _rank(sizes, sizes["n_kv_head"])
    return {"rows": sizes[_TOKENS], "heads": heads, "kv_heads": kv_heads, "width": sizes["n_embd"] // sizes["n_head"]}


def _hidden(width: str) -> Parameters:
    return lambda of: {"rows": of[_TOKENS], width: of["n_embd"]}


def _inner(sizes: Columns) -> dict[str, Integers]:
    return {"rows": sizes[_TOKENS], "width": _rank(sizes, sizes["n_expanded_embd"])}


def _embedding(sizes: Columns) -> dict[str, Integers]:
    return {"rows": sizes[_TOKENS], "vocab": _rank(sizes, sizes["vocab_size"]), "width": sizes["n_embd"]}


_LAYERS: Final[Mapping[str, _Op]] = {
    "emb": _Op("embedding_rows", _embedding),
    "attn_pre_proj": _Op("linear", _qkv),
    "attn_rope": _Op(None, _rope),
    "attn_post_proj": _Op("linear", lambda of: _product(of, _rank(of, of["n_embd"]), of["n_embd"])),
    "mlp_up_proj": _Op("linear", _up),
    "mlp_down_proj": _Op("linear", lambda of: _product(of, _rank(of, of["n_expanded_embd"]), of["n_embd"])),
}
# a second norm is an RMS norm in Vidur, and the first then is one too; without, either may be what the first is, and
# the residual stream takes up attention and MLP in two additions
_TWO_NORMS: Final[Mapping[str, _Op]] = {
    "input_layernorm": _Op("rmsnorm", _hidden("dim")),
    _SECOND_NORM: _Op("rmsnorm", _hidden("dim")),
    "add": _Op("add", _hidden("width")),
}
_ONE_NORM: Final[Mapping[str, _Op]] = {
    "input_layernorm": _Op(None, _hidden("width")),
    "add": _Op(None, _hidden("width")),
}
_ACTS: Final = (_Op("gelu_rows", _inner), _Op(None, _inner))  # without a gate, and with one
_NAMES: Final = tuple(dict.fromkeys((*_LAYERS, *_TWO_NORMS, "mlp_act")))


def is_layers(_: Path, columns: Sequence[str]) -> bool:
    """Whether a file has the columns of Vidur's layers."""
    return any(name.startswith(_TIMES) for name in columns) and _COLLECTIVE not in columns


def read_layers(path: Path) -> tuple[MeasuredTable, ...]:
    """A table for each op of a file; of an op whose kind depends on the model, one for each kind."""
    columns = columns_of(path)
    ops = [op for op in _NAMES if f"{_TIMES}{op}{_MEDIAN}" in columns]
    if not ops:
        raise ValueError(f"{path}, line 1: no column {_TIMES}OP{_MEDIAN} of any of {', '.join(_NAMES)}")
    sheet = sheet_of(path, (*_SIZES, _GATED, *(f"{_TIMES}{op}{_MEDIAN}" for op in ops)))
    sizes = {name: sheet.sizes(name) for name in _SIZES}
    flags = {"True": 1, "False": 0}
    for line, cell in zip(sheet.lines, sheet.cells[_GATED], strict=True):
        if cell not in flags:
            raise ValueError(f'{path}, line {line}: {_GATED} is "{cell[:40]}": it must be True or False')
    sizes[_GATED] = np.array([flags[cell] for cell in sheet.cells[_GATED]], dtype=np.int64)
    for name in ("n_head", _WAYS):
        if (empty := np.flatnonzero(sizes[name] == 0)).size:
            raise ValueError(f"{path}, line {sheet.lines[empty[0]]}: {name} is 0, which is no size")
    device, norms = _device_of_folder(path, GPUS, "GPU"), _TWO_NORMS if _SECOND_NORM in ops else _ONE_NORM
    return tuple(
        _table(sheet, op, kind, sizes, rows, device, "fp16", f"{_TIMES}{op}{_MEDIAN}")
        for op in ops
        for gated in np.unique(sizes[_GATED]).tolist()
        for rows in (np.flatnonzero(sizes[_GATED] == gated),)
        for kind in ({**_LAYERS, **norms, "mlp_act": _ACTS[gated]}[op],)
    )


_COLLECTIVE, _BYTES, _WORKERS, _HERE = "collective", "size", "num_workers", "devices_per_node"
_ITEM_BYTES: Final = 2


def _message(sizes: Columns) -> dict[str, Integers]:
    nodes = sizes[_WORKERS] // sizes[_HERE]
    return {"elements": sizes[_BYTES] // _ITEM_BYTES, "nodes": nodes, "gpus_per_node": sizes[_HERE]}


_COLLECTIVES: Final[Mapping[str, _Op]] = {
    "all_reduce": _Op("all_reduce", _message),
    "send_recv": _Op("p2p", _message),
    "all_gather": _Op("all_gather", _message),
    "reduce_scatter": _Op("reduce_scatter", _message),
}


def is_collectives(_: Path, columns: Sequence[str]) -> bool:
    """Whether a file has the columns of Vidur's collectives."""
    return _COLLECTIVE in columns and any(name.startswith(_TIMES) for name in columns)


def read_collectives(path: Path) -> tuple[MeasuredTable, ...]:
    """A table for each collective of a file."""
    timed = [name for name in columns_of(path) if name.startswith(_TIMES) and name.endswith(_MEDIAN)]
    sheet = sheet_of(path, (_COLLECTIVE, _BYTES, _WORKERS, _HERE, *timed))
    sizes = {name: sheet.sizes(name) for name in (_BYTES, _WORKERS, _HERE)}
    here = sizes[_HERE]
    odd: Iterable[tuple[str, np.ndarray]] = (
        (_BYTES, sizes[_BYTES] % _ITEM_BYTES != 0),
        (_HERE, (here == 0) | (sizes[_WORKERS] % np.maximum(here, 1) != 0)),
    )
    for name, wrong in odd:
        if (bad := np.flatnonzero(wrong)).size:
            value = sheet.cells[name][bad[0]]
            raise ValueError(f"{path}, line {sheet.lines[bad[0]]}: {name} is {value}, which is no whole part")
    device = _device_of_folder(path, NODES, "node")
    tables = []
    for name in dict.fromkeys(sheet.cells[_COLLECTIVE]):
        rows = np.flatnonzero(np.array(sheet.cells[_COLLECTIVE]) == name)
        op, times = _known(sheet, _COLLECTIVE, name, rows, _COLLECTIVES), f"{_TIMES}{name}{_MEDIAN}"
        if times not in timed:
            raise ValueError(f"{path}, line 1: no column {times}")
        tables.append(_table(sheet, name, op, sizes, rows, device, "fp16", times))
    return tuple(tables)
