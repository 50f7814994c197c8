"""The parts of an explanation from what torch told, stage by stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from rooflight.compiling.explaining.aot import autograd_of
from rooflight.compiling.explaining.cuda_graphs import cuda_graphs
from rooflight.compiling.explaining.explanation import Autograd, Graph, Place, Recompile
from rooflight.compiling.explaining.graph_breaks import graph_breaks
from rooflight.compiling.explaining.graph_text import function_name, printed, resumed_at
from rooflight.compiling.explaining.guards import Symbols, guard_s, guards
from rooflight.compiling.explaining.kernels import kernels
from rooflight.compiling.explaining.listening import Heard, Told
from rooflight.compiling.explaining.recompiles import recompile
from rooflight.compiling.stages import AOT, BUILD, DYNAMO, INDUCTOR
from rooflight.workloads.errors import first_words

_FALLBACK = "Using FallbackKernel: "


def stages_of(heard: Heard, *, dynamic: bool | None = None, code: bool = False) -> dict[str, Any]:
    """The fields of an ``ExplainDocument`` that follow from torch's records."""
    by_id: dict[str, list[Told]] = defaultdict(list)
    for told in heard.told:
        if isinstance(told, Told) and told.id:
            by_id[told.id].append(told)
    frames = {id_: _Frame(id_, told) for id_, told in by_id.items()}
    fallbacks = (line.removeprefix(_FALLBACK) for line in heard.logged["perf_hints"] if line.startswith(_FALLBACK))
    return {
        "graphs": tuple(frame.graph() for frame in frames.values() if frame.started),
        "graph_breaks": graph_breaks(told.text for told in heard.of("dynamo_graph_break_reason")),
        "recompiles": tuple(_recompiles(frames, dynamic)),
        "autograd": tuple(_autograd(frames, heard)),
        "kernels": kernels(heard, code=code),
        "fallbacks": tuple(dict.fromkeys(fallbacks)),
        "cuda_graphs": cuda_graphs(heard.logged["cudagraphs"]),
    }


class _Frame:
    """One compilation: what torch told of its last attempt."""

    def __init__(self, id_: str, told: list[Told]) -> None:
        self.id = id_
        last = max(each.attempt for each in told)
        self.told = {each.name: each for each in told if each.attempt == last or each.name == "dynamo_start"}
        self.recompiled = next((each for each in told if each.name == "recompile_reasons"), None)
        start = self.told.get("dynamo_start")
        self.started = start is not None
        stack = start.fields["stack"] if start is not None else []
        self.frame: Mapping[str, Any] = stack[-1] if stack else {}
        self.metrics: Mapping[str, Any] = self._fields("compilation_metrics")
        created = (each.fields for each in told if each.name == "create_symbol" and each.attempt == last)
        self.guards = guards(self._text("dynamo_cpp_guards_str"), [self.file] if self.file else [])
        self.symbols = Symbols(created, self.guards)

    def _fields(self, name: str) -> Mapping[str, Any]:
        told = self.told.get(name)
        return told.fields if told is not None and told.fields else {}

    def _text(self, name: str) -> str:
        told = self.told.get(name)
        return "" if told is None else told.text

    @property
    def file(self) -> str:
        return file_named(self.frame.get("filename"))

    @property
    def function(self) -> str:
        return function_name(str(self.frame.get("name") or self.metrics.get("co_name") or ""))

    @property
    def rest(self) -> bool:
        """Whether it is the rest of a function after a graph break."""
        return resumed_at(str(self.frame.get("name"))) is not None

    @property
    def place(self) -> Place | None:
        if not self.frame:
            return None
        resumed = resumed_at(str(self.frame.get("name")))
        line = int(self.frame.get("line") or 0)
        return Place(file=self.file, line=line if resumed is None else resumed, function=self.function)

    def graph(self) -> Graph:
        """What Dynamo made of the frame."""
        text, failed = self._text("dynamo_output_graph"), self.metrics.get("fail_reason")
        graph = printed(text)
        return Graph(
            id=self.id,
            function=self.function,
            place=self.place,
            origin="recompile" if self.recompiled is not None else "after a break" if self.rest else "first",
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
    """Seconds by stage, each without those that it waits for."""
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


def _recompiles(frames: Mapping[str, _Frame], dynamic: bool | None) -> Iterator[Recompile]:
    for frame in frames.values():
        if frame.recompiled is None:
            continue
        first = frames.get(f"{frame.id.partition('/')[0]}/0", frame)
        yield recompile(
            frame.recompiled, frame.function or first.function, frame.place or first.place, frame.symbols,
            dynamic=dynamic, limit=not frame.started, rest=frame.rest,
        )  # fmt: skip


def _autograd(frames: Mapping[str, _Frame], heard: Heard) -> Iterator[Autograd]:
    for frame in frames.values():
        texts = {name: told.text for name, told in frame.told.items()}
        if any(name.startswith("aot_") for name in texts):
            yield autograd_of(frame.id, texts, heard.joint.get(frame.id, ()), frame.symbols.by_name)
