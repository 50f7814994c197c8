"""Vidur's tables of layers: a row a number of tokens, with the times of every op of one layer of one model.

Times are medians over 20 runs, in ms to 1 µs, of kernels alone; float16, forward only. The GPU is the name of a folder
that the file lies in. Ops that torch has not as one kernel (SiLU with its product, rotary embedding in place) are read
under Vidur's own names, as are those for which a file says too little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rooflight.operators import registry
from rooflight.prediction.read.sheet import Sheet, columns_of, sheet_of
from rooflight.prediction.read.table import Integers, MeasuredTable, device_of_folder, table_of

Columns = Mapping[str, Integers]

DEVICES: Final[Mapping[str, str]] = {"a100": "A100-SXM4-80GB", "h100": "H100-SXM5-80GB", "a40": "A40"}
"""Vidur's names of GPUs. Only the memory of each is known; of the parts that have as much, the one with the highest
peaks, so that a bound is one on any of them."""
_MILLI: Final = 1e-3
_PRECISION: Final = "fp16"
_PREFIX, _STATISTIC = "time_stats.", ".median"
_TOKENS, _GATED, _WAYS = "num_tokens", "use_gated_mlp", "num_tensor_parallel_workers"
_SIZES: Final = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", _TOKENS, _WAYS)
_SECOND_NORM: Final = "post_attention_layernorm"


@dataclass(frozen=True, slots=True)
class _Op:
    """One of Vidur's ops: our operator, None where there is none of its kind, and its parameters."""

    operator: str | None
    parameters: Callable[[Columns], dict[str, Integers]]


def _rank(sizes: Columns, whole: Integers) -> Integers:
    """One rank's part."""
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
    return {
        "rows": sizes[_TOKENS],
        "heads": _rank(sizes, sizes["n_head"]),
        "kv_heads": _rank(sizes, sizes["n_kv_head"]),
        "width": sizes["n_embd"] // sizes["n_head"],
    }


def _hidden(width: str) -> Callable[[Columns], dict[str, Integers]]:
    return lambda sizes: {"rows": sizes[_TOKENS], width: sizes["n_embd"]}


def _inner(sizes: Columns) -> dict[str, Integers]:
    return {"rows": sizes[_TOKENS], "width": _rank(sizes, sizes["n_expanded_embd"])}


def _embedding(sizes: Columns) -> dict[str, Integers]:
    return {"rows": sizes[_TOKENS], "vocab": _rank(sizes, sizes["vocab_size"]), "width": sizes["n_embd"]}


_OPS: Final[Mapping[str, _Op]] = {
    "emb": _Op("embedding_rows", _embedding),
    "attn_pre_proj": _Op("linear", _qkv),
    "attn_rope": _Op(None, _rope),
    "attn_post_proj": _Op("linear", lambda sizes: _product(sizes, _rank(sizes, sizes["n_embd"]), sizes["n_embd"])),
    "mlp_up_proj": _Op("linear", _up),
    "mlp_down_proj": _Op(
        "linear", lambda sizes: _product(sizes, _rank(sizes, sizes["n_expanded_embd"]), sizes["n_embd"])
    ),
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
_GATED_ACT: Final = _Op(None, _inner)
_PLAIN_ACT: Final = _Op("gelu_rows", _inner)
_NAMES: Final = tuple(dict.fromkeys((*_OPS, *_TWO_NORMS, "mlp_act")))


def recognised(path: Path, columns: Sequence[str]) -> bool:  # noqa: ARG001 - recognised by its columns
    """Whether a file has the columns of Vidur's layers."""
    return any(name.startswith(_PREFIX) for name in columns) and "collective" not in columns


def read(path: Path) -> tuple[MeasuredTable, ...]:
    """A table for each op of a file; of an op whose kind depends on the model, one for each kind."""
    columns = columns_of(path)
    ops = [op for op in _NAMES if f"{_PREFIX}{op}{_STATISTIC}" in columns]
    if not ops:
        raise ValueError(f"{path}, line 1: no column {_PREFIX}OP{_STATISTIC} of any of {', '.join(_NAMES)}")
    sheet = sheet_of(path, (*_SIZES, _GATED, *(f"{_PREFIX}{op}{_STATISTIC}" for op in ops)))
    sizes = {name: sheet.sizes(name) for name in _SIZES}
    sizes[_GATED] = _flags(sheet, _GATED)
    for name in ("n_head", _WAYS):
        if (empty := np.flatnonzero(sizes[name] == 0)).size:
            raise ValueError(f"{path}, line {sheet.lines[empty[0]]}: {name} is 0, which is no size")
    device = device_of_folder(path, DEVICES, "GPU")
    tables = []
    for op in ops:
        seconds = sheet.seconds(f"{_PREFIX}{op}{_STATISTIC}", _MILLI)
        for gated in np.unique(sizes[_GATED]):
            rows = np.flatnonzero(sizes[_GATED] == gated)
            kind = _kind(op, gated=bool(gated), two_norms=_SECOND_NORM in ops)
            operator = None if kind.operator is None else registry.find(kind.operator)
            tables.append(
                table_of(
                    operator,
                    kind.parameters({name: values[rows] for name, values in sizes.items()}),
                    kernel=op,
                    source=path,
                    device=device,
                    precision=_PRECISION,
                    seconds=seconds[rows, None],
                    directions=("fwd",) if operator is None else operator.directions[:1],
                    unit_s=_MILLI,
                    lines=sheet.lines[rows],
                    label=f"{path.parent.name} {op}",
                )
            )
    return tuple(tables)


def _kind(op: str, *, gated: bool, two_norms: bool) -> _Op:
    if op == "mlp_act":
        return _GATED_ACT if gated else _PLAIN_ACT
    return {**_OPS, **(_TWO_NORMS if two_norms else _ONE_NORM)}[op]


def _flags(sheet: Sheet, name: str) -> Integers:
    known = {"True": 1, "False": 0}
    for line, cell in zip(sheet.lines, sheet.cells[name], strict=True):
        if cell not in known:
            raise ValueError(f'{sheet.path}, line {line}: {name} is "{cell[:40]}": it must be True or False')
    return np.array([known[cell] for cell in sheet.cells[name]], dtype=np.int64)


NODES: Final[Mapping[str, str]] = {
    "a100_dgx": "A100-SXM4-80GB",
    "h100_dgx": "H100-SXM5-80GB",
    "a100_pairwise_nvlink": "A100-PCIE-80GB",
    "h100_pairwise_nvlink": "H100-NVL-94GB",
    "a40_pairwise_nvlink": "A40",
}
"""What each kind of node is made of: where NVLink joins pairs, the parts that have it as a bridge between two."""
_OPERATORS: Final[Mapping[str, str]] = {
    "all_reduce": "all_reduce",
    "send_recv": "p2p",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
}
_ITEM_BYTES: Final = 2
_COLLECTIVE, _SIZE, _WORKERS, _HERE = "collective", "size", "num_workers", "devices_per_node"


def has_collectives(path: Path, columns: Sequence[str]) -> bool:  # noqa: ARG001 - recognised by its columns
    """Whether a file has the columns of Vidur's collectives."""
    return _COLLECTIVE in columns and any(name.startswith("time_stats.") for name in columns)


def read_collectives(path: Path) -> tuple[MeasuredTable, ...]:
    """A table for each collective of a file."""
    timed = [name for name in columns_of(path) if name.startswith("time_stats.") and name.endswith(".median")]
    sheet = sheet_of(path, (_COLLECTIVE, _SIZE, _WORKERS, _HERE, *timed))
    size, workers, here = (sheet.sizes(name) for name in (_SIZE, _WORKERS, _HERE))
    for name, wrong in ((_SIZE, size % _ITEM_BYTES != 0), (_HERE, (here == 0) | (workers % np.maximum(here, 1) != 0))):
        if (rows := np.flatnonzero(wrong)).size:
            raise ValueError(
                f"{path}, line {sheet.lines[rows[0]]}: {name} is {sheet.cells[name][rows[0]]}, which is no whole part"
            )
    device = device_of_folder(path, NODES, "node")
    tables = []
    for collective in dict.fromkeys(sheet.cells[_COLLECTIVE]):
        rows = np.flatnonzero(np.array(sheet.cells[_COLLECTIVE]) == collective)
        operator = registry.find(_OPERATORS[_known_collective(sheet, collective, rows)])
        if f"time_stats.{collective}.median" not in timed:
            raise ValueError(f"{path}, line 1: no column time_stats.{collective}.median")
        tables.append(
            table_of(
                operator,
                {
                    "elements": size[rows] // _ITEM_BYTES,
                    "nodes": workers[rows] // here[rows],
                    "gpus_per_node": here[rows],
                },
                kernel=collective,
                source=path,
                device=device,
                precision=_PRECISION,
                seconds=sheet.seconds(f"time_stats.{collective}.median", _MILLI)[rows, None],
                directions=operator.directions,
                unit_s=_MILLI,
                lines=sheet.lines[rows],
                label=f"{path.parent.name} {collective}",
            )
        )
    return tuple(tables)


def _known_collective(sheet: Sheet, collective: str, rows: Integers) -> str:
    if collective not in _OPERATORS:
        raise ValueError(
            f'{sheet.path}, line {sheet.lines[rows[0]]}: {_COLLECTIVE} is "{collective[:40]}": '
            f"it can be {', '.join(_OPERATORS)}"
        )
    return collective
