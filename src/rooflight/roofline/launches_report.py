"""How the host launched the device's work, in reports."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Column, Table
from rooflight.records.timeline import Launches
from rooflight.roofline.op_names import plain_name


def launch_facts(found: Launches) -> Iterable[tuple[str, Cell]]:
    """What the head of the report shows of kernels and their launches."""
    if found.kernels:
        share = percent(found.short_s / found.kernels_s) if found.kernels_s else "0%"
        yield (
            "kernels",
            f"{found.kernels:,} in the trace, {found.short_kernels:,} shorter than 5 µs ({share} of their time)",
        )
    host = f"; host {Quantity(found.host_per_launch_s, 's')} per launch" if found.host_per_launch_s else ""
    graphs = f"; {count_of(found.graphs, 'replay')} of graphs" if found.graphs else ""
    graphs += f"; {count_of(found.captures, 'capture')} of graphs" if found.captures else ""
    yield (
        "launches",
        f"work begins {Quantity(found.delay_median_s, 's')} after its launch (median), {found.queue_median:,} in the "
        f"queue (median), none for {percent(found.queue_empty)} of the time{host}{graphs}",
    )


def host_table(found: Launches, top: int) -> Table | None:
    """The host's time by op, None where no op launched."""
    if not found.ops:
        return None
    return Table(
        id="host_time",
        title="Host time of ops that launch",
        columns=(
            Column("op"),
            Column("calls"),
            Column("launched"),
            Column("host", "s"),
            Column("host per call", "s"),
            Column("device per call", "s"),
        ),
        rows=tuple(
            (plain_name(op.name), op.calls, op.launched, op.host_s, op.host_s / op.calls, op.device_s / op.calls)
            for op in found.ops
        ),
        top=top,
        optional=("launched", "calls"),
        note="Of the whole trace, without the host's waits for the device. Where the host needs longer per call than "
        "the device, the device waits for it.",
    )
