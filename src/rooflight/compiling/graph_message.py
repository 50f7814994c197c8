"""A graph that Dynamo captured, as bytes for this program's own child process, and back.

The bytes are those of torch's pickler for graphs, which can run code when they are read. They go through a private pipe
to a process that this one started: they are not written to disk, nothing that another program wrote is read, and what
comes back is JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map_only

from rooflight.compiling.torch_settings import settings_now
from rooflight.workloads.errors import told_in_one_line

_STATIC: Final = "_dynamo_static_input_type"
_VALUE: Final = "example_value"


class NotSendableError(Exception):
    """Why a graph has no form that another process can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A graph, what stands for its inputs (fake tensors and numbers), and what the cache's key depends on besides:
    where Dynamo found each input, which of them keep their memory, what each node's value is like, and
    which inputs are parameters; torch's ``settings``, and Inductor's ``patches``.
    """

    graph: torch.fx.GraphModule
    inputs: list[Any]
    sources: list[Any]
    static: list[Any]
    values: list[Any]
    parameters: list[bool]
    settings: dict[str, Any]
    patches: dict[str, Any]


def packed(graph: torch.fx.GraphModule, inputs: list[Any], patches: dict[str, Any]) -> bytes:
    """The graph with its inputs' metadata, without the values of any. Called where Dynamo calls a backend.

    Raises NotSendableError.
    """
    places = graph.graph.find_nodes(op="placeholder")
    if any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in inputs):
        raise NotSendableError("its tensors are on a GPU, where a second process would take memory")
    if any(True for _ in graph.parameters()) or any(True for _ in graph.buffers()):
        raise NotSendableError("the graph holds tensors of its own")
    memories = [value.untyped_storage()._cdata for value in inputs if isinstance(value, torch.Tensor)]
    if len(set(memories)) < len(memories):
        raise NotSendableError("some of its inputs share their memory")
    fakes = [
        _alone(node.meta[_VALUE]) if isinstance(value, torch.Tensor) else value
        for node, value in zip(places, inputs, strict=True)
    ]
    try:
        from torch.fx._graph_pickler import GraphPickler, Options

        with torch.no_grad():  # the pickler takes no views with a history
            values = [
                tree_map_only(torch.Tensor, torch.Tensor.detach, node.meta.get(_VALUE)) for node in graph.graph.nodes
            ]
        captured = {
            "graph": graph,
            "inputs": fakes,
            "sources": [getattr(node, "_dynamo_source", None) for node in places],
            "static": [node.meta.get("tensor_dict", {}).get(_STATIC) for node in places],
            "values": values,
            "settings": settings_now(),
            "patches": patches,
            "parameters": [isinstance(node.meta.get(_VALUE), torch.nn.Parameter) for node in places],
        }
        # stacks and modules in the metadata of nodes cannot be sent, and the cache does not read them
        options = Options(ops_filter=None, node_metadata_key_filter=lambda _: False)
        return bytes(GraphPickler.dumps(captured, options))
    except Exception as error:  # the pickler is private to torch, and raises what it meets
        raise NotSendableError(f"the graph cannot be sent to another process: {told_in_one_line(error)}") from error


def _alone(fake: torch.Tensor) -> torch.Tensor:
    """An input without what hangs on it: the pickler takes no views, and a parameter's gradient may be one."""
    if fake.is_leaf:
        with torch.no_grad():
            return fake.detach().requires_grad_(fake.requires_grad)
    return fake


def unpacked(message: bytes) -> tuple[Captured, list[Any], Any]:
    """In the child: the graph, inputs for it, and the fake mode that knows what these stand for."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    parts: Any = GraphPickler.loads(message, mode)
    captured = Captured(**parts)
    for node, value in zip(captured.graph.graph.nodes, captured.values, strict=True):
        if value is not None:
            node.meta[_VALUE] = value
    places = captured.graph.graph.find_nodes(op="placeholder")
    for node, source, static in zip(places, captured.sources, captured.static, strict=True):
        node._dynamo_source = source
        node.meta["tensor_dict"] = {_STATIC: static} if static else {}
    _order_attributes(captured.graph)
    given: list[Any] = []
    for number, (value, parameter) in enumerate(zip(captured.inputs, captured.parameters, strict=True)):
        if isinstance(value, torch.Tensor):
            if parameter:
                captured.inputs[number] = torch.nn.Parameter(value, requires_grad=value.requires_grad)
            given.append(_like(captured.inputs[number]))
            memo: Any = mode.fake_tensor_converter  # it knows the value as long as ``captured`` has it
            memo.set_tensor_memo(given[-1], captured.inputs[number])
        else:
            given.append(value)
    return captured, given, mode


def _like(fake: torch.Tensor) -> torch.Tensor:
    """What Dynamo gives a backend: a tensor of the sizes that a call had. Its pages are never written, so they take no
    memory.
    """
    sizes, strides = ([_hint(each) for each in numbers] for numbers in (fake.shape, fake.stride()))
    begin = _hint(fake.storage_offset())
    extent = begin + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    memory = torch.empty(max(begin, extent), dtype=fake.dtype, device=fake.device).untyped_storage()
    tensor = torch.empty(0, dtype=fake.dtype, device=fake.device).set_(memory, begin, sizes, strides)
    if isinstance(fake, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=fake.requires_grad)
    return tensor.requires_grad_(fake.requires_grad)


def _hint(size: int | torch.SymInt) -> int:
    """The number that a call had for a size: to ask for its value would make code for this number alone."""
    return size if isinstance(size, int) else int(size.node.hint)


def _order_attributes(graph: torch.fx.GraphModule) -> None:
    """Give the graph's attributes the order of Dynamo's, which is in the cache's key: the pickler leaves one out."""
    parts = graph.__dict__
    if "_backend_id" not in parts and "_code" in parts:
        names = list(parts)
        later = {name: parts.pop(name) for name in names[names.index("_code") :]}
        parts["_backend_id"] = None
        parts.update(later)
