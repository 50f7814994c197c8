"""Nodes of an FX graph, and the groups that Inductor's scheduler makes of them, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node: the op's name (``aten::mul``; empty for inputs), the names of the nodes it reads, its bytes.

    ``eager``: which call of eager it is part of: the op's name, and what tells two calls apart; None for an op that
    Inductor's own passes put in. ``bytes`` counts the memory that the tensors span, each once: 0 for a view, None for
    unknown sizes. ``stack`` is torch's text of the lines that made it.
    """

    name: str
    op: str
    reads: tuple[str, ...]
    eager: tuple[str, Any] | None
    bytes: int | None
    view: bool
    stack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that the scheduler runs together: their names, and bytes read and written as Inductor counts. ``library``:
    the function that is called, for a call of a library; empty for what Inductor generates.
    """

    nodes: frozenset[str]
    bytes: int | None
    library: str = ""


def nodes_of(graph: Any) -> tuple[Node, ...]:
    """The nodes of a ``torch.fx.Graph`` (or of a module that has one), in order, without its output."""
    graph = getattr(graph, "graph", graph)
    return tuple(_node(node) for node in graph.nodes if node.op != "output")


def _node(node: Any) -> Node:
    target, meta = node.target, node.meta
    call = node.op == "call_function"
    return Node(
        name=node.name,
        op=op_name(target) if call else "",
        reads=tuple(each.name for each in node.all_input_nodes),
        eager=_eager(node) if call else None,
        bytes=bytes_of(meta.get("val")),
        view=bool(getattr(target, "is_view", False)),
        stack=meta.get("stack_trace") or "",
    )


def op_name(target: Any) -> str:
    """``aten::mul`` of an overload or a packet of torch's; the function's name of anything else."""
    packet = getattr(target, "overloadpacket", target)
    name = getattr(packet, "_qualified_op_name", None)
    return str(name) if name else str(getattr(target, "__name__", target))


def _eager(node: Any) -> tuple[str, Any] | None:
    original = node.meta.get("original_aten")
    if original is None:
        return None
    made = node.meta.get("from_node") or ()
    if made and not made[0].name:  # of a pattern that Inductor replaced another by
        return None
    return op_name(original), (node.meta.get("seq_nr"), tuple(each.name for each in made[:1]))


def bytes_of(value: Any) -> int | None:
    """The bytes of a tensor's elements, broadcast ones once; of several tensors their sum. None if a size is symbolic
    and has no hint.
    """
    if isinstance(value, tuple | list):
        sizes = [bytes_of(each) for each in value]
        return None if None in sizes else sum(size for size in sizes if size is not None)
    shape = getattr(value, "shape", None)
    if shape is None:
        return 0
    elements = 1
    for size, stride in zip(shape, value.stride(), strict=True):
        known = _hint(size)
        if known is None:
            return None
        if not isinstance(stride, int) or stride != 0:
            elements *= known
    return elements * int(value.element_size())


def _hint(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    hint = getattr(getattr(size, "node", None), "hint", None)
    return hint if isinstance(hint, int) else None


def groups_of(nodes: Iterable[Any]) -> tuple[Group, ...]:
    """The scheduler's nodes after fusion, in order; those that run nothing are left out."""
    return tuple(group for node in nodes if (group := _group(node)) is not None)


def _group(node: Any) -> Group | None:
    kind = type(node).__name__
    if kind == "ExternKernelSchedulerNode":
        if type(node.node).__name__ == "MultiOutput":  # one of the results of the call before
            return None
        names = frozenset(each.name for each in _called(node.node))
        name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
        return Group(nodes=names, bytes=_bytes_moved(node), library=str(name))
    if kind == "NopKernelSchedulerNode":
        return None
    parts = [part.node for part in node.get_nodes() if part.node is not None]
    names = frozenset(each.name for part in parts for each in getattr(part, "origins", None) or ())
    return Group(nodes=names, bytes=_bytes_moved(node))


def _called(kernel: Any) -> list[Any]:
    """The FX nodes that a library call stands for. Its origins include the nodes of inputs that it had written out."""
    origin, op = kernel.get_origin_node(), getattr(kernel, "op_overload", None)
    if origin is not None:
        return [origin]
    origins = list(getattr(kernel, "origins", None) or ())
    return [each for each in origins if each.target is op] or origins


def _bytes_moved(node: Any) -> int | None:
    try:
        moved = node.get_read_write_buffers_sizes()
    except Exception:  # of kinds of nodes that have no count of it
        return None
    return int(moved) if isinstance(moved, int) else None
