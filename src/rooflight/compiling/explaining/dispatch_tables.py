"""Tables of the dispatcher's layers and key sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rooflight.compiling.explaining.explanation import Dispatched, Layer
from rooflight.records.report import Cell, Column, Table

ROWS: Final = 16


def dispatch_tables(dispatched: Sequence[Dispatched]) -> Iterator[Table]:
    """The layers of each op, and how the key sets come about; nothing for no ops."""
    if dispatched:
        yield _layers(dispatched)
        yield _key_sets(dispatched)


def _layers(dispatched: Sequence[Dispatched]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in dispatched:
        by_kind = {layer.kind: _above_noise(layer) for layer in each.layers}
        rows.append(
            (
                f"  {each.op}" if each.within else each.op,
                "backward" if each.backward else "forward",
                each.calls,
                " > ".join(layer.key for layer in each.layers),
                _masked(each),
                by_kind.get("autocast"),
                by_kind.get("autograd"),
                by_kind.get("in-place and views"),
                each.call_s,
            )
        )
    return Table(
        id="dispatcher",
        title="Dispatcher: the layers of each op in eager",
        columns=(
            Column("op"),
            Column("direction"),
            Column("calls"),
            Column("layers"),
            Column("masked", wraps=True),
            Column("autocast", "s"),
            Column("autograd", "s"),
            Column("views", "s"),
            Column("call", "s"),
        ),
        rows=tuple(rows),
        top=ROWS,
        see="--json for all",
        optional=("direction", "views", "autocast", "masked"),
        note="An op that is indented was called by a kernel of the one above. layers: kernels that run, each of which "
        "masks keys and calls on; masked: the keys that each adds. A composite op's only layer is an autograd key; it "
        "masks nothing and calls other ops. autocast, autograd, views: what the layer adds to a call, measured with "
        "and without it on small inputs (–: no more than the noise); call: a whole call from Python.",
    )


def _masked(each: Dispatched) -> str:
    """The keys that each layer masks beyond those before it: ``Autograd > ADInplaceOrView``."""
    seen: set[str] = set()
    parts = []
    for layer in each.layers:
        new = [key for key in layer.masks if key not in seen]
        seen.update(new)
        if new:
            parts.append(", ".join(new))
    return " > ".join(parts)


def _above_noise(layer: Layer) -> float | None:
    """A layer's cost; None where it is no larger than its spread."""
    if layer.cost_s is None or layer.spread_s is None or layer.cost_s <= layer.spread_s:
        return None
    return layer.cost_s


def _key_sets(dispatched: Sequence[Dispatched]) -> Table:
    sets: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for each in dispatched:
        key = (each.inputs, each.always, each.included, each.never, each.excluded, each.passed_over)
        sets.setdefault(key, []).append(each.op)
    rows = tuple(
        (_names(inputs), _names(always), _names(included), _names((*never, *excluded)), _names(passed), _ops(ops))
        for (inputs, always, included, never, excluded, passed), ops in sets.items()
    )
    return Table(
        id="key_sets",
        title="Dispatcher: how the key sets come about",
        columns=(
            Column("inputs", wraps=True),
            Column("always", wraps=True),
            Column("thread adds", wraps=True),
            Column("excluded", wraps=True),
            Column("fall through", wraps=True),
            Column("ops", wraps=True),
        ),
        rows=rows,
        top=ROWS,
        see="--json for all",
        optional=("always", "ops", "fall through", "excluded"),
        unknown="",
        note="An op's key set: (inputs + always + thread adds) - excluded. inputs: keys of its tensors. always: keys "
        "that every thread includes. thread adds: those that this thread includes besides, as a mode does. excluded: "
        "those masked in this thread. fall through: keys of the set without work for the op. The kernel of the first "
        "other key runs.",
    )


def _names(keys: Sequence[str]) -> str:
    return ", ".join(keys) or "none"


def _ops(ops: Sequence[str]) -> str:
    names = list(dict.fromkeys(op.removeprefix("aten::").partition(".")[0] for op in ops))
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
