"""What AOT autograd made of a graph: joint graph, decompositions, what is saved and what recomputed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rooflight.compiling.explaining.explanation import Autograd, Decomposition, Saved
from rooflight.compiling.explaining.graph_text import Line, Printed, printed, sized, source_of
from rooflight.compiling.explaining.inductor_graphs import Node

_OVERLOAD: Final = re.compile(r"^torch\.ops\.(\w+)\.(\w+)\.(\w+)\(")
_FIRST: Final = re.compile(r"\((\w+)")
_SAVED: Final = "SavedForBackwards"


def autograd_of(
    id: str,  # noqa: A002 - torch's own name of it
    texts: Mapping[str, str],
    joint: Sequence[Node],
    symbols: Mapping[str, int],
) -> Autograd:
    """A graph from the texts of its stages (``aot_joint_graph`` and so on), and the nodes before Inductor's passes."""
    whole = texts.get("aot_joint_graph") or texts.get("aot_inference_graph") or ""
    inference = printed(texts.get("aot_inference_graph", ""))
    forward, backward = printed(texts.get("aot_forward_graph", "")), printed(texts.get("aot_backward_graph", ""))
    computed = {line.name for line in backward.lines if not _is_view(line) and line.op != "getitem"}
    again = computed & {line.name for line in forward.lines}
    return Autograd(
        id=id,
        joint=_ops(printed(texts.get("aot_joint_graph", ""))),
        forward=_ops(forward) or _ops(inference),
        backward=_ops(backward),
        decompositions=decompositions(joint),
        saved=tuple(_saved(forward, symbols)),
        recomputed=tuple(line.op for line in backward.lines if line.name in again),
        mutated_inputs=texts.get("aot_forward_graph_fw_metadata", "").count("mutates_data=True"),
        code=whole,
    )


def _ops(graph: Printed) -> int:
    return sum(line.op != "getitem" for line in graph.lines)


def decompositions(nodes: Sequence[Node]) -> tuple[Decomposition, ...]:
    """The ops that were replaced by others, with these in order, the most frequent first."""
    parts: dict[tuple[str, object], list[str]] = {}
    for node in nodes:
        if node.eager is not None and node.op and node.op != "getitem":
            key = (node.eager[0], node.name) if node.op == node.eager[0] else node.eager
            parts.setdefault(key, []).append(node.op)
    found = Counter((op, tuple(dict.fromkeys(into))) for (op, _), into in parts.items() if into != [op])
    return tuple(Decomposition(op=op, into=into, count=count) for (op, into), count in found.most_common())


def _is_view(line: Line) -> bool:
    """Whether an op only looks at its input's memory, by torch's schema of it."""
    import torch

    found = _OVERLOAD.match(line.expression)
    packet = None if found is None else getattr(getattr(torch.ops, found[1], None), found[2], None)
    return bool(getattr(getattr(packet, found[3], None), "is_view", False)) if found is not None else False


def _inputs_seen(forward: Printed) -> set[str]:
    """The inputs, and the views of them."""
    seen = set(forward.inputs)
    for line in forward.lines:
        first = _FIRST.search(line.expression)
        if _is_view(line) and first is not None and first[1] in seen:
            seen.add(line.name)
    return seen


def _saved(forward: Printed, symbols: Mapping[str, int]) -> list[Saved]:
    made = {line.name: line for line in forward.lines}
    inputs = _inputs_seen(forward)
    found = []
    for name, note in forward.results:
        if not note.startswith(_SAVED):
            continue
        line = made.get(name)
        op, type_text = "", forward.inputs.get(name, ("", ""))[0]
        if line is not None:
            op, type_text = source_of(line, made).op, line.type
        dtype, shape, size = sized(type_text, symbols)
        if not dtype:  # a number, such as a symbolic size
            continue
        found.append(
            Saved(
                name=name, dtype=dtype, shape=shape, bytes=size, op=op, of_input=name in inputs,
                place=None if line is None else line.place,
            )
        )  # fmt: skip
    return found
