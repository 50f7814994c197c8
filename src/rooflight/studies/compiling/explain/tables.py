"""An explanation as a Report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Axis, Cell, Line, Mark, Report, Series, Table, table
from rooflight.sources.workloads.targets import called
from rooflight.studies.compiling.explain.result import (
    Autograd,
    Dispatched,
    ExplainDocument,
    Graph,
    Kernel,
    LayerKind,
    Saved,
    place_of,
    total,
)
from rooflight.studies.compiling.torch_logs import AOT, BUILD, DYNAMO, INDUCTOR


def _layers(dispatched: Sequence[Dispatched]) -> Table:
    return table(
        "dispatcher",
        "Dispatcher: the layers of each op in eager",
        dispatched,
        ("op", "", lambda each: f"  {each.op}" if each.within else each.op),
        ("direction", "", lambda each: "backward" if each.backward else "forward"),
        ("calls", "", lambda each: each.calls),
        ("layers", "", lambda each: " > ".join(layer.key for layer in each.layers)),
        ("masked", "", _masked),
        ("autocast", "s", lambda each: _added_s(each, "autocast")),
        ("autograd", "s", lambda each: _added_s(each, "autograd")),
        ("views", "s", lambda each: _added_s(each, "in-place and views")),
        ("call", "s", lambda each: each.call_s),
        wraps=("masked",),
        **_SOME | {"top": 16},
        optional=("direction", "views", "autocast", "masked"),
        note="An op that is indented was called by a kernel of the one above. layers: kernels that run, each of which "
        "masks keys and calls on; masked: the keys that each adds. A composite op's only layer is an autograd key; it "
        "masks nothing and calls other ops. autocast, autograd, views: what the layer adds to a call, measured with "
        "and without it on small inputs (–: no more than the noise); call: a whole call from Python.",
    )


def _masked(each: Dispatched) -> str:
    seen: set[str] = set()
    parts = []
    for layer in each.layers:
        new = [key for key in layer.masks if key not in seen]
        seen.update(new)
        if new:
            parts.append(", ".join(new))
    return " > ".join(parts)


def _added_s(each: Dispatched, kind: LayerKind) -> float | None:
    """What the last layer of a kind costs; None where that is no larger than its spread."""
    layer = next((layer for layer in reversed(each.layers) if layer.kind == kind), None)
    if layer is None or layer.cost_s is None or layer.spread_s is None or layer.cost_s <= layer.spread_s:
        return None
    return layer.cost_s


def _key_sets(dispatched: Sequence[Dispatched]) -> Table:
    sets: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for each in dispatched:
        key = (each.inputs, each.always, each.included, each.never, each.excluded, each.passed_over)
        sets.setdefault(key, []).append(each.op)
    return table(
        "key_sets",
        "Dispatcher: how the key sets come about",
        sets.items(),
        ("inputs", "", lambda row: _names(row[0][0])),
        ("always", "", lambda row: _names(row[0][1])),
        ("thread adds", "", lambda row: _names(row[0][2])),
        ("excluded", "", lambda row: _names((*row[0][3], *row[0][4]))),
        ("fall through", "", lambda row: _names(row[0][5])),
        ("ops", "", lambda row: _ops(row[1])),
        wraps=("inputs", "always", "thread adds", "excluded", "fall through", "ops"),
        **_SOME | {"top": 16},
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


ROWS: Final = 12
_SOME: Final[dict[str, Any]] = {"top": ROWS, "see": "--json for all"}
_VALUES: Final = ("EQUALS_MATCH", "CONSTANT_MATCH", "LAMBDA_GUARD", "LENGTH_CHECK", "BOOL_MATCH", "NONE_MATCH")
_OF_LIBRARIES: Final = re.compile(r"^torch\.|^utils_device|__import_|__defaults__|\.__dict__|G\['torch'\]")
"""Guards on what a program hardly changes: modules that were imported, defaults of functions."""
_KEY_SET: Final = re.compile(r"DispatchKeySet\([^)]*\), |device=None, ")
_SHORT: Final = 60


def report_of(found: ExplainDocument) -> Report:
    """What ``rooflight explain`` shows."""
    return Report(
        title=f"What torch.compile makes of {called(found.target) if found.target.endswith('.json') else found.target}",
        data=found,
        facts=tuple(_facts(found)),
        tables=tuple(each for each in _tables(found) if each.rows),
        series=tuple(_series(found)),
        notes=(*found.notes, *_notes(found)),
        conclusion=conclusion(found),
    )


def _series(found: ExplainDocument) -> Iterator[Series]:
    """The time of each stage of compiling, by graph."""
    graphs = [graph for graph in found.graphs if graph.stages_s][:ROWS]
    names = tuple(f"{graph.id} {graph.function}" for graph in graphs)
    if len(set(names)) == len(names) > 0:
        lines = (
            Line(name=name, x=names, y=tuple(graph.stages_s.get(stage, 0.0) for graph in graphs), mark=Mark.BARS)
            for name, stage in (("Dynamo", DYNAMO), ("AOT", AOT), ("Inductor", INDUCTOR), ("build", BUILD))
        )
        yield Series(
            id="compile_time",
            title="Time to compile, by graph and stage",
            x=Axis(name="graph"),
            y=Axis(name="time to compile", unit="s"),
            lines=tuple(lines),
        )


def saved_bytes(kernels: Iterable[Kernel]) -> tuple[int, int] | None:
    """Bytes that eager moves for the work of these kernels, and that they move; None where a size is unknown."""
    some = list(kernels)
    eager, moved = total(kernel.bytes_eager for kernel in some), total(kernel.bytes_kernel for kernel in some)
    return None if eager is None or moved is None else (eager, moved)


def conclusion(found: ExplainDocument) -> str:
    """The shape of the result in a few sentences, and what to mend first."""
    if found.not_compiled:
        return f"Not compiled: {found.not_compiled.rstrip('.')}."
    first, _ = _captured(found)
    parts = [
        f"{count_of(first, 'graph')} for {count_of(found.calls, 'call')}, "
        f"{count_of(len(found.graph_breaks), 'graph break')}, {count_of(len(found.recompiles), 'recompile')}."
    ]
    if found.kernels:
        parts.append(f"{count_of(len(found.kernels), 'kernel')} in all compilations.")
    if causes := _by_time_lost(found):
        parts.append(f"Mend first: {': '.join(filter(None, causes[0]))}.")
    return " ".join(parts)


def _by_time_lost(found: ExplainDocument) -> list[tuple[str, str]]:
    """Places and remedies: what each call compiles again, breaks that cut a graph, what compiled again and has settled,
    breaks that cut none; of the same kind by the time that compiling took.
    """
    took_s = {graph.id: sum(graph.stages_s.values()) for graph in found.graphs}
    breaks = [(place_of(each.place), each.rewrite, each.cuts) for each in found.graph_breaks if each.rewrite]
    causes = {(place, rewrite): (2 if cuts else 0, 0.0) for place, rewrite, cuts in breaks}
    at_break = {place: rewrite for place, rewrite, _ in reversed(breaks)}
    for again in found.recompiles:
        place, remedy = place_of(again.place), again.fix
        if again.guards and "___stack" in again.guards[0].source:  # of what the break at the line returns
            remedy = at_break.get(place, remedy)
        kind, lost_s = causes.get((place, remedy), (0, 0.0))
        causes[place, remedy] = max(kind, 3 if again.lasts else 1), lost_s + took_s.get(again.id, 0.0)
    mended = (cause for cause in causes if cause[1] and not cause[1].endswith("is right"))
    return sorted(mended, key=lambda cause: causes[cause], reverse=True)


def _captured(found: ExplainDocument) -> tuple[int, int]:
    again = [graph.origin == "recompile" for graph in found.graphs if graph.state == "captured"]
    return again.count(False), again.count(True)


def _facts(found: ExplainDocument) -> Iterator[tuple[str, Cell]]:
    yield "torch", f"{found.torch}, {found.device}"
    dynamic = f", mode {found.mode}" if found.mode != "default" else ""
    yield "compiled by", f"{found.backend}{dynamic}, {count_of(found.calls, 'call')}"
    first, again = _captured(found)
    yield "graphs", f"{first}, and {again} more by recompiles" if again else first
    yield "graph breaks", len(found.graph_breaks)
    yield "recompiles", len(found.recompiles)
    if found.kernels:
        generated = [kernel for kernel in found.kernels if kernel.kind != "library"]
        library = len(found.kernels) - len(generated)
        yield "kernels", f"{len(generated)} generated, {count_of(library, 'call of a library', 'calls of a library')}"
        recompiled = {graph.id for graph in found.graphs if graph.origin == "recompile"}
        sizes = saved_bytes(kernel for kernel in found.kernels if kernel.id not in recompiled)
        if sizes is not None and sizes[0]:
            saved = Quantity(sizes[0] - sizes[1], "B")
            of = f"{Quantity(sizes[0], 'B')} that eager moves in the first call"
            yield "bytes saved", f"{saved} of {of} ({percent(1 - sizes[1] / sizes[0])})"


def _tables(found: ExplainDocument) -> Iterator[Table]:
    yield _layers(found.dispatched)
    yield _key_sets(found.dispatched)
    yield _graphs(found.graphs)
    yield _guards(found.graphs)
    again = any(each.lasts for each in found.recompiles) or not any(each.cuts for each in found.graph_breaks)
    yield from (_recompiles(found), _breaks(found)) if again else (_breaks(found), _recompiles(found))
    yield _autograd(found)
    yield _decompositions(found)
    yield _saved(found)
    yield _kernels(found.kernels)
    yield _cuda_graphs(found)
    yield from _code(found.kernels)


def _graphs(graphs: Sequence[Graph]) -> Table:
    empty = " empty: this part has no op of torch, so nothing is compiled for it."
    return table(
        "graphs",
        "Dynamo: graphs, and the time of each stage",
        graphs,
        ("graph", "", lambda graph: graph.id),
        ("function", "", lambda graph: graph.function),
        ("line", "", lambda graph: place_of(graph.place)),
        ("compiled", "", lambda graph: graph.origin if graph.state == "captured" else f"{graph.origin}: {graph.state}"),
        ("ops", "", lambda graph: sum(op.count for op in graph.ops)),
        ("guards", "", lambda graph: len(graph.guards)),
        ("checking", "s", lambda graph: graph.guard_s),
        ("Dynamo", "s", lambda graph: graph.stages_s.get(DYNAMO)),
        ("AOT", "s", lambda graph: graph.stages_s.get(AOT)),
        ("Inductor", "s", lambda graph: graph.stages_s.get(INDUCTOR)),
        ("build", "s", lambda graph: graph.stages_s.get(BUILD)),
        **_SOME,
        optional=("build", "Inductor", "AOT", "Dynamo", "function"),
        note="graph: as torch counts, function/compilation. after a break: the rest of the function. checking: all "
        "guards, once per call, as torch measured. build: code generation and the C++ or Triton compiler; for a "
        "CPU the first one compiles torch's own header too." + empty * any(graph.state == "empty" for graph in graphs),
    )


def _guards(graphs: Sequence[Graph]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for graph in graphs:
        kinds = Counter(guard.kind for guard in graph.guards)
        for guard in graph.guards:
            if guard.kind == "TENSOR_MATCH" or guard.kind in _VALUES:
                if _OF_LIBRARIES.search(guard.check):
                    continue
                kinds[guard.kind] -= 1
                rows.append((graph.id, guard.kind, _KEY_SET.sub("", guard.check), place_of(guard.place)))
        others = [f"{count} {kind}" for kind, count in kinds.items() if count]
        if others:
            rows.append((graph.id, "others", ", ".join(others), ""))
    left = (
        " ___stack0, ___stack1, …: values that the code before a graph break left to the rest, such as that of .item()."
    )
    return table(
        "guards",
        "Dynamo: guards",
        rows,
        ("graph", "", lambda row: row[0]),
        ("guard", "", lambda row: row[1]),
        ("check", "", lambda row: row[2]),
        ("for line", "", lambda row: row[3]),
        wraps=("check",),
        **_SOME,
        note="A graph runs while all its guards hold; else the function is compiled again. others: on types, "
        "identities and what libraries define." + left * any("___stack" in str(check) for _, _, check, _ in rows),
    )


def _breaks(found: ExplainDocument) -> Table:
    return table(
        "graph_breaks",
        "Dynamo: graph breaks",
        found.graph_breaks,
        ("line", "", lambda each: place_of(each.place)),
        ("code", "", lambda each: _cut(each.place.code) if each.place is not None else ""),
        ("reason", "", lambda each: each.reason + (" (the function runs eagerly)" if each.whole_function else "")),
        ("rewrite", "", lambda each: each.rewrite),
        wraps=("reason", "rewrite"),
        note="torch's own reasons; --json has its explanations and hints too.",
    )


def _recompiles(found: ExplainDocument) -> Table:
    return table(
        "recompiles",
        "Dynamo: recompiles",
        ((each, each.guards[0]) for each in found.recompiles if each.guards),
        ("graph", "", lambda row: row[0].id),
        ("function", "", lambda row: f"{row[0].function} ({place_of(row[0].place)})".removesuffix(" ()")),
        ("guard on", "", lambda row: row[1].source or row[1].check),
        ("expected", "", lambda row: row[1].expected),
        ("was", "", lambda row: row[1].actual),
        ("fix", "", lambda row: ("given up: " if row[0].limit else "") + row[0].fix),
        wraps=("guard on", "fix"),
        **_SOME,
        optional=("function",),
        note="The guard of the latest compilation that failed. given up: the limit of recompiles is reached, and the "
        "function runs eagerly from then on.",
    )


def _autograd(found: ExplainDocument) -> Table:
    return table(
        "autograd",
        "AOT autograd: forward and backward",
        ((each, [saved for saved in each.saved if not saved.of_input]) for each in found.autograd),
        ("graph", "", lambda row: row[0].id),
        ("joint", "", lambda row: row[0].joint or None),
        ("forward", "", lambda row: row[0].forward),
        ("backward", "", lambda row: row[0].backward or None),
        ("saved", "", lambda row: _saved_counts(*row) if row[0].backward else None),
        ("kept", "B", lambda row: total(saved.bytes for saved in row[1]) if row[0].backward else None),
        ("recomputed", "", lambda row: _counted(row[0].recomputed)),
        ("written inputs", "", lambda row: row[0].mutated_inputs or None),
        wraps=("recomputed",),
        **_SOME,
        optional=("written inputs", "joint"),
        note="joint, forward, backward: ops in each graph. saved: tensors that backward reads; those that are no "
        "inputs take memory (kept). recomputed: ops that backward runs again rather than reading their results. "
        "written inputs: the graph is functional; a copy writes the result back.",
    )


def _saved_counts(each: Autograd, own: Sequence[Saved]) -> str:
    return f"{len(own)} and {count_of(len(each.saved) - len(own), 'input')}"


def _counted(ops: Iterable[str]) -> str:
    return ", ".join(f"{op} x{count}" if count > 1 else op for op, count in Counter(ops).items())


def _decompositions(found: ExplainDocument) -> Table:
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for each in found.autograd:
        for one in each.decompositions:
            counts[one.op, one.into] += one.count
    return table(
        "decompositions",
        "AOT autograd: decompositions",
        counts.most_common(),
        ("op", "", lambda row: row[0][0]),
        ("times", "", lambda row: row[1]),
        ("into", "", lambda row: ", ".join(row[0][1])),
        wraps=("into",),
        **_SOME,
    )


def _saved(found: ExplainDocument) -> Table:
    largest_first = ((each.id, sorted(each.saved, key=lambda saved: -(saved.bytes or 0))) for each in found.autograd)
    return table(
        "saved",
        "AOT autograd: saved for backward, largest first",
        ((graph, tensor) for graph, saved in largest_first for tensor in saved if not tensor.of_input),
        ("graph", "", lambda row: row[0]),
        ("tensor", "", lambda row: row[1].name),
        ("of", "", lambda row: row[1].op),
        ("shape", "", lambda row: f"{row[1].dtype}[{', '.join('?' if n is None else str(n) for n in row[1].shape)}]"),
        ("size", "B", lambda row: row[1].bytes),
        ("line", "", lambda row: place_of(row[1].place)),
        **_SOME,
    )


def _kernels(kernels: Sequence[Kernel]) -> Table:
    sizes = [(kernel.bytes_eager, kernel.bytes_kernel) for kernel in kernels]
    more = any(eager and moved is not None and moved > eager for eager, moved in sizes)
    negative = (
        " A negative share: the kernel moves more than eager, because it computes once more what another kernel has "
        "computed too, or writes a tensor that only backward reads."
    )
    return table(
        "kernels",
        "Inductor: which ops became which kernel",
        kernels,
        ("graph", "", lambda kernel: kernel.id),
        ("direction", "", lambda kernel: kernel.direction),
        ("kernel", "", lambda kernel: _cut(kernel.name, 36)),
        (
            "ops of eager",
            "",
            lambda each: _counted(op.removeprefix("aten::") for op in each.eager_ops or each.ops),
        ),
        ("lines", "", lambda kernel: ", ".join(dict.fromkeys(place_of(place) for place in kernel.places[-3:]))),
        ("eager", "B", lambda kernel: kernel.bytes_eager if kernel.eager_ops else None),
        ("moves", "B", lambda kernel: kernel.bytes_kernel),
        ("saved", "%", _saved_share),
        wraps=("ops of eager",),
        **_SOME | {"top": 2 * ROWS},
        optional=("direction", "lines", "graph"),
        note="eager: bytes that eager moves for these ops, each of which reads its inputs and writes its result once "
        "(–: the kernel computes only a part of an op). moves: bytes that the kernel reads and writes, as Inductor "
        "counts. saved: the share of eager's bytes that the kernel does not move." + negative * more,
    )


def _cuda_graphs(found: ExplainDocument) -> Table:
    return table(
        "cuda_graphs",
        "CUDA graphs",
        found.cuda_graphs,
        ("graph", "", lambda each: each.id),
        ("what", "", lambda each: each.what),
        ("reason", "", lambda each: each.reason),
        ("fix", "", lambda each: each.fix),
        wraps=("reason", "fix"),
        **_SOME,
    )


def _saved_share(kernel: Kernel) -> float | None:
    moved = kernel.bytes_kernel
    return 1 - moved / kernel.bytes_eager if kernel.bytes_eager and moved is not None else None


def _code(kernels: Sequence[Kernel]) -> Iterator[Table]:
    for number, kernel in enumerate(kernels, start=1):
        if kernel.code:
            title = f"{kernel.name} ({kernel.id}, {kernel.direction})"
            lines = kernel.code.rstrip().splitlines()
            yield table(f"code_{number}", title, lines, ("code", "", lambda line: line), wraps=("code",))


def _notes(found: ExplainDocument) -> Iterator[str]:
    for graph in found.graphs:
        if graph.failed and not found.not_compiled:
            yield f"{graph.function} ({place_of(graph.place)}) runs eagerly: {graph.failed}"
    if found.fallbacks:
        yield f"No lowering of Inductor's, so that nothing fuses with them: {', '.join(found.fallbacks)}."
    if found.cuda_graphs_asked and not found.cuda_graphs:
        where = "there is no GPU here" if found.device == "cpu" else "torch logged nothing of them"
        yield f"CUDA graphs were asked for, and none was recorded: {where}."
    if found.backend != "inductor":
        yield f'The backend "{found.backend}" is not Inductor: only the stages before it are explained.'


def _cut(text: str, most: int = _SHORT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
