"""A report's data as JSON."""

from __future__ import annotations

import msgspec

from rooflight.records.report import Report


def render_json(report: Report) -> str:
    """The machine-readable whole of a report: its ``schema``, then its data. Unknown is null, never 0 or NaN."""
    return msgspec.json.format(msgspec.json.encode(report.data), indent=2).decode() + "\n"
