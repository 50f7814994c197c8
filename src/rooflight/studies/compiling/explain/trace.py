"""What torch logs while it compiles: its structured trace, the logs of CUDA graphs, and Inductor's graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rooflight.studies.compiling.explain.result import total
from rooflight.studies.compiling.torch_logs import Artifact, attached, hearing


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
        return total(map(bytes_of, value))
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


_CONTEXT: Final = {"frame_id", "frame_compile_id", "attempt", "has_payload", "rank", "process", "stack",
                   "compiled_autograd_id"}  # fmt: skip
_NEEDED: Final = {
    "dynamo_start", "dynamo_output_graph", "dynamo_cpp_guards_str", "dynamo_graph_break_reason", "recompile_reasons",
    "compilation_metrics", "bwd_compilation_metrics", "create_symbol", "aot_joint_graph", "aot_inference_graph",
    "aot_forward_graph", "aot_forward_graph_fw_metadata", "aot_backward_graph", "inductor_output_code",
}  # fmt: skip
_LOGS: Final[tuple[Artifact, ...]] = ("cudagraphs", "perf_hints")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of torch's trace: ``name`` of its kind, the compilation (``0/1``) and attempt, fields, text and call."""

    name: str
    id: str
    attempt: int
    fields: Any
    text: str
    call: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A graph that Inductor got: its nodes, after its own passes, and the groups that its scheduler made of them."""

    id: str
    nodes: tuple[Node, ...]
    groups: tuple[Group, ...] = ()


@dataclass(slots=True)
class Heard:
    """All that torch logged, in order. ``joint``: by compilation, the nodes before Inductor's passes. ``call``: the
    call that runs, from 1.
    """

    entries: list[Entry | Lowered] = field(default_factory=list)
    logged: dict[Artifact, list[str]] = field(default_factory=dict)
    joint: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    call: int = 0

    def of(self, name: str) -> list[Entry]:
        """The records of a kind."""
        return [each for each in self.entries if isinstance(each, Entry) and each.name == name]


class _Trace(logging.Handler):
    def __init__(self, heard: Heard) -> None:
        super().__init__(logging.DEBUG)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record of the structured trace that an explanation needs."""
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        name = next((key for key in metadata if key not in _CONTEXT), "")
        fields = metadata.get(name)
        if name == "artifact" and fields is not None:
            name = fields["name"]
        if name not in _NEEDED:
            return
        frame = metadata.get("frame_id")
        payload = getattr(record, "payload", None)
        self._heard.entries.append(
            Entry(
                name=name,
                id="" if frame is None else f"{frame}/{metadata.get('frame_compile_id')}",
                attempt=metadata.get("attempt") or 0,
                fields=fields,
                text=payload if isinstance(payload, str) else "",
                call=self._heard.call,
            )
        )


@contextmanager
def listening() -> Iterator[Heard]:
    """Collect what torch tells in the block. Loggers and settings are put back afterwards."""
    with hearing(*_LOGS) as logged:
        heard = Heard(logged=logged)
        with attached(logging.getLogger("torch.__trace"), _Trace(heard), quiet=True), _inductor(heard):
            yield heard


@contextmanager
def _inductor(heard: Heard) -> Iterator[None]:
    """Look at Inductor's graphs by its own hooks, beside those that the user set."""
    from torch._functorch import config as functorch
    from torch._guards import CompileContext
    from torch._inductor import config

    def now() -> str:
        context = CompileContext.current_compile_id()
        return str(context).split(" ", maxsplit=1)[0].removeprefix("!") if context is not None else ""

    def joint(graph: Any) -> None:
        heard.joint.setdefault(now(), nodes_of(graph))

    def lowered(graph: Any) -> None:
        heard.entries.append(Lowered(id=now(), nodes=nodes_of(graph)))

    def fused(nodes: list[Any]) -> list[Any]:
        last = heard.entries[-1] if heard.entries else None
        if isinstance(last, Lowered):
            heard.entries[-1] = Lowered(id=last.id, nodes=last.nodes, groups=groups_of(nodes))
        return nodes

    changes = {
        "joint_custom_pre_pass": _passes(joint, config.joint_custom_pre_pass),
        "post_grad_custom_post_pass": _passes(config.post_grad_custom_post_pass, lowered),
        "_post_fusion_custom_pass": _chained(config._post_fusion_custom_pass, fused),
        "fx_graph_cache": False,  # a hit would skip what is to be seen
    }
    with config.patch(changes), functorch.patch(enable_autograd_cache=False):
        yield


def _passes(*passes: Any) -> Callable[[Any], None]:
    flat = [
        each for some in passes for each in (some if isinstance(some, list | tuple) else [some]) if each is not None
    ]

    def run(graph: Any) -> None:
        for each in flat:
            each(graph)

    return run


def _chained(first: Callable[[Any], Any] | None, second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return second if first is None else lambda nodes: second(first(nodes))
