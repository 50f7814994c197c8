"""CUDA graphs in the report: what they hold, and that a replay is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rooflight.inference.summary import GraphData
from rooflight.records.report import Column, Table

_SHOWN: Final = 20
_SEE: Final = "summary.json has all"


def graph_tables(graphs: Sequence[GraphData]) -> Iterable[Table]:
    """The graphs; nothing where there are none."""
    if graphs:
        yield Table(
            id="cuda_graphs",
            title="CUDA graphs",
            columns=(Column("graphs"), Column("replays"), Column("buckets inside", wraps=True)),
            rows=tuple((each.graphs, each.replays, _inside(each)) for each in graphs),
            note="A replay is timed as one, in bucket cuda_graph: the buckets inside were seen when the graph was "
            "captured, and their times are not known.",
            top=_SHOWN,
            see=_SEE,
        )


def _inside(graph: GraphData) -> str:
    if graph.buckets is None:
        return "not known: captured before attach_model()"
    return ", ".join(name if calls == 1 else f"{name} ({calls})" for name, calls in graph.buckets.items()) or "none"
