"""The parts of an explanation from what torch logged, stage by stage: Dynamo, AOT autograd, Inductor, CUDA graphs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rooflight.sources.workloads.errors import first_words
from rooflight.studies.compiling.explain.breaks import (
    Symbols,
    cuda_graphs,
    failed_guards,
    graph_breaks,
    guard_s,
    guards,
    recompile,
)
from rooflight.studies.compiling.explain.graph_text import (
    Line,
    Printed,
    function_name,
    printed,
    resumed_at,
    sized,
    source_of,
)
from rooflight.studies.compiling.explain.kernels import eager_calls, kernels
from rooflight.studies.compiling.explain.result import (
    Autograd,
    Decomposition,
    Graph,
    Recompile,
    Saved,
    SourceLine,
    of_library,
)
from rooflight.studies.compiling.explain.trace import Entry, Heard, Node
from rooflight.studies.compiling.torch_logs import AOT, BUILD, DYNAMO, INDUCTOR

_OVERLOAD: Final = re.compile(r"^torch\.ops\.(\w+)\.(\w+)\.(\w+)\(")
_FIRST: Final = re.compile(r"\((\w+)")
_SAVED: Final = "SavedForBackwards"
_CALLER: Final = str(Path(__file__).with_name("explain.py"))
_FALLBACK: Final = "Using FallbackKernel: "


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
    parts = ((op, [node.op for node in call if node.op != "getitem"]) for op, call in eager_calls(nodes))
    found = Counter((op, tuple(dict.fromkeys(into))) for op, into in parts if into and into != [op])
    return tuple(Decomposition(op=op, into=into, count=count) for (op, into), count in found.most_common())


def _is_view(line: Line) -> bool:
    import torch

    found = _OVERLOAD.match(line.expression)
    packet = None if found is None else getattr(getattr(torch.ops, found[1], None), found[2], None)
    return bool(getattr(getattr(packet, found[3], None), "is_view", False)) if found is not None else False


def _inputs_seen(forward: Printed) -> set[str]:
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


def stages_of(heard: Heard, *, dynamic: bool | None = None, code: bool = False) -> dict[str, Any]:
    """The fields of an ``ExplainDocument`` that follow from torch's records."""
    by_id: dict[str, list[Entry]] = defaultdict(list)
    for entry in heard.entries:
        if isinstance(entry, Entry) and entry.id:
            by_id[entry.id].append(entry)
    frames = {id_: _Frame(id_, entries) for id_, entries in by_id.items()}
    broken = heard.of("dynamo_graph_break_reason")
    graphs = {id_: frame.graph() for id_, frame in frames.items() if frame.started}
    works = [frames[id_] for id_, graph in graphs.items() if graph.state == "captured"]
    goes_on = {(frame.file, frame.function) for frame in works if frame.resumed is not None}
    cut = {frame.id for frame in works if (frame.file, frame.function) in goes_on}
    fallbacks = (line.removeprefix(_FALLBACK) for line in heard.logged["perf_hints"] if line.startswith(_FALLBACK))
    return {
        "graphs": tuple(graphs.values()),
        "graph_breaks": graph_breaks((entry.text for entry in broken), (entry.id in cut for entry in broken)),
        "recompiles": tuple(_recompiles(frames, dynamic, heard.call)),
        "autograd": tuple(_autograd(frames, heard)),
        "kernels": kernels(heard, code=code),
        "fallbacks": tuple(dict.fromkeys(fallbacks)),
        "cuda_graphs": cuda_graphs(heard.logged["cudagraphs"]),
    }


class _Frame:
    def __init__(self, id_: str, entries: list[Entry]) -> None:
        self.id = id_
        last = max(each.attempt for each in entries)
        self.entries = {each.name: each for each in entries if each.attempt == last or each.name == "dynamo_start"}
        self.recompiled = next((each for each in entries if each.name == "recompile_reasons"), None)
        start = self.entries.get("dynamo_start")
        self.started = start is not None
        stack = start.fields["stack"] if start is not None else []
        self.stack: Sequence[Mapping[str, Any]] = stack
        self.frame: Mapping[str, Any] = stack[-1] if stack else {}
        self.resumed = resumed_at(str(self.frame.get("name")))
        metrics = self.entries.get("compilation_metrics")
        self.metrics: Mapping[str, Any] = metrics.fields if metrics is not None and metrics.fields else {}
        created = (each.fields for each in entries if each.name == "create_symbol" and each.attempt == last)
        self.guards = guards(self._text("dynamo_cpp_guards_str"), [self.file] if self.file else [])
        self.symbols = Symbols(created, self.guards)

    def _text(self, name: str) -> str:
        entry = self.entries.get(name)
        return "" if entry is None else entry.text

    @property
    def file(self) -> str:
        return file_named(self.frame.get("filename"))

    @property
    def function(self) -> str:
        return function_name(str(self.frame.get("name") or self.metrics.get("co_name") or ""))

    @property
    def place(self) -> SourceLine | None:
        """Where it is, of torch's own code the line of the user's that calls it; None where there is none."""
        for frame in reversed(self.stack):
            file, name = file_named(frame.get("filename")), str(frame.get("name"))
            if file == _CALLER:
                break
            if not of_library(file):
                line = resumed_at(name) or int(frame.get("line") or 0)
                return SourceLine(file=file, line=line, function=function_name(name))
        return None

    def graph(self) -> Graph:
        """What Dynamo made of the frame."""
        text, failed = self._text("dynamo_output_graph"), self.metrics.get("fail_reason")
        graph = printed(text)
        return Graph(
            id=self.id,
            function=self.function,
            place=self.place,
            origin="recompile" if self.recompiled else "first" if self.resumed is None else "after a break",
            state="failed" if failed else "captured" if graph.lines else "empty",
            ops=graph.counts(),
            code=text,
            guards=self.guards,
            guard_s=guard_s(self._text("dynamo_cpp_guards_str")),
            stages_s=_stages_s(self.metrics),
            failed=first_words(str(failed).strip().partition("\n")[0]) if failed else "",
        )


def file_named(number: Any) -> str:
    """The file that torch's records name by a number; empty where it is unknown."""
    from torch._logging.structured import INTERN_TABLE

    if isinstance(number, str):
        return number
    return next((name for name, known in INTERN_TABLE.items() if known == number), "")


def _stages_s(metrics: Mapping[str, Any]) -> dict[str, float]:
    whole = metrics.get("entire_frame_compile_time_s")
    if whole is None:
        return {}
    backend, inductor, build = (
        float(metrics.get(key) or 0.0)
        for key in ("backend_compile_time_s", "inductor_compile_time_s", "code_gen_time_s")
    )
    return {
        DYNAMO: max(0.0, whole - backend),
        AOT: max(0.0, backend - inductor),
        INDUCTOR: max(0.0, inductor - build),
        BUILD: build,
    }


def _recompiles(frames: Mapping[str, _Frame], dynamic: bool | None, last: int) -> Iterator[Recompile]:
    before: set[tuple[str, str]] = set()
    for frame in frames.values():
        if frame.recompiled is None:
            continue
        guard = next(iter(failed_guards(frame.recompiled, frame.symbols)), None)
        what = (frame.id.partition("/")[0], "" if guard is None else guard.source or guard.check)
        again = what in before or what[1] in frame.symbols.constants
        before.add(what)
        first = frames.get(f"{frame.id.partition('/')[0]}/0", frame)
        yield recompile(
            frame.recompiled, frame.function or first.function, frame.place or first.place, frame.symbols,
            dynamic=dynamic, limit=not frame.started, rest=frame.resumed is not None,
            lasts=again and frame.recompiled.call == last,
        )  # fmt: skip


def _autograd(frames: Mapping[str, _Frame], heard: Heard) -> Iterator[Autograd]:
    for frame in frames.values():
        texts = {name: entry.text for name, entry in frame.entries.items()}
        if any(name.startswith("aot_") for name in texts):
            yield autograd_of(frame.id, texts, heard.joint.get(frame.id, ()), frame.symbols.by_name)
