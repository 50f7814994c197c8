"""What torch tells while it compiles: its structured trace, the logs of CUDA graphs, and Inductor's graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rooflight.compiling.explaining.inductor_graphs import Group, Node, groups_of, nodes_of
from rooflight.compiling.torch_logs import Artifact, attached, hearing

_CONTEXT: Final = frozenset(
    ("frame_id", "frame_compile_id", "attempt", "has_payload", "rank", "process", "stack", "compiled_autograd_id")
)
_NEEDED: Final = frozenset(
    (
        "dynamo_start",
        "dynamo_output_graph",
        "dynamo_cpp_guards_str",
        "compilation_metrics",
        "bwd_compilation_metrics",
        "create_symbol",
        "aot_joint_graph",
        "aot_forward_graph",
        "aot_backward_graph",
        "aot_inference_graph",
        "inductor_output_code",
        "dynamo_graph_break_reason",
        "recompile_reasons",
        "aot_forward_graph_fw_metadata",
    )
)
_LOGS: Final[tuple[Artifact, ...]] = ("cudagraphs", "perf_hints")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A record of torch's: ``name`` of its kind, the compilation (``0/1``) and attempt, the fields, the text."""

    name: str
    id: str
    attempt: int
    fields: Any
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A graph that Inductor got: its nodes, after its own passes, and the groups that its scheduler made of them."""

    id: str
    nodes: tuple[Node, ...]
    groups: tuple[Group, ...] = ()


@dataclass(slots=True)
class Heard:
    """All that torch told, in order. ``joint``: by compilation, the nodes before Inductor's passes."""

    told: list[Told | Lowered] = field(default_factory=list)
    logged: dict[Artifact, list[str]] = field(default_factory=dict)
    joint: dict[str, tuple[Node, ...]] = field(default_factory=dict)

    def of(self, name: str) -> list[Told]:
        """The records of a kind."""
        return [each for each in self.told if isinstance(each, Told) and each.name == name]


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
        self._heard.told.append(
            Told(
                name=name,
                id="" if frame is None else f"{frame}/{metadata.get('frame_compile_id')}",
                attempt=metadata.get("attempt") or 0,
                fields=fields,
                text=payload if isinstance(payload, str) else "",
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
        heard.told.append(Lowered(id=now(), nodes=nodes_of(graph)))

    def fused(nodes: list[Any]) -> list[Any]:
        last = heard.told[-1] if heard.told else None
        if isinstance(last, Lowered):
            heard.told[-1] = Lowered(id=last.id, nodes=last.nodes, groups=groups_of(nodes))
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
    """One pass that runs several: the user's may be none, one, or a list."""
    flat = [
        each for some in passes for each in (some if isinstance(some, list | tuple) else [some]) if each is not None
    ]

    def run(graph: Any) -> None:
        for each in flat:
            each(graph)

    return run


def _chained(first: Callable[[Any], Any] | None, second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return second if first is None else lambda nodes: second(first(nodes))
