"""Memory and KV cache in the report of decode steps."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.inference.summary import RunData, SummaryDocument
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.report import Cell, Column


def memory_facts(summary: SummaryDocument) -> Iterable[tuple[str, Cell]]:
    """The memory of all runs."""
    memory, cache = summary.memory, summary.kv_cache
    if memory is not None:
        kind = "resident" if memory.place == "host" else "in tensors on the device"
        before, after, peak = (
            Quantity(each, "B") for each in (memory.before_bytes, memory.after_bytes, memory.peak_bytes)
        )
        when = "reached in a run" if memory.peak_in_run else "reached before the runs"
        yield "memory", f"{before} {kind} when runs began, {after} when they ended; peak of the process {peak}, {when}"
    if cache is not None:
        mean, most = Quantity(cache.mean_bytes, "B"), Quantity(cache.max_bytes, "B")
        yield "KV cache", f"{mean} on average, at most {most}, of {count_of(cache.steps, 'step')}"


def memory_columns(summary: SummaryDocument) -> Iterable[Column]:
    """Columns of the table of runs."""
    if summary.kv_cache is not None:
        yield Column("max KV cache", "B")
    if summary.memory is not None:
        yield Column("memory after", "B")


def memory_cells(summary: SummaryDocument, run: RunData) -> Iterable[Cell]:
    """A run's cells of ``memory_columns``."""
    if summary.kv_cache is not None:
        yield run.kv_cache.max_bytes if run.kv_cache else None
    if summary.memory is not None:
        yield run.memory.after_bytes if run.memory else None
