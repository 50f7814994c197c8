"""What AOT autograd made of a graph: joint graph, decompositions, what is saved and what recomputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rooflight.compiling.explaining.explanation import Autograd, Decomposition, Saved
from rooflight.compiling.explaining.graph_text import Printed, printed, sized
from rooflight.compiling.explaining.inductor_graphs import Node

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
    views = {node.name for node in joint if node.view}
    again = {line.name for line in forward.lines} & {line.name for line in backward.lines} - views
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


def _saved(forward: Printed, symbols: Mapping[str, int]) -> list[Saved]:
    made = {line.name: line for line in forward.lines}
    found = []
    for name, note in forward.results:
        if not note.startswith(_SAVED):
            continue
        line = made.get(name)
        of_input, op, type_text = name in forward.inputs, "", forward.inputs.get(name, ("", ""))[0]
        if line is not None:
            op, type_text = line.op, line.type
        dtype, shape, size = sized(type_text, symbols)
        if not dtype:  # a number, such as a symbolic size
            continue
        found.append(
            Saved(
                name=name, dtype=dtype, shape=shape, bytes=size, op=op, of_input=of_input,
                place=None if line is None else line.place,
            )
        )  # fmt: skip
    return found
