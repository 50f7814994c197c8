"""The JSON Schema of everything that ``--json`` writes.

``python -m rooflight.reporting.schemas > docs/reference/schemas.json``
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import msgspec

from rooflight.records.document import Document

_DOCUMENTS: Final = (
    "roofline.tables.document.AnalysisDocument",
    "diagnosis.tables.DiagnosisDocument",
    "roofline.ranks.RanksDocument",
    "studies.tracking.report.StepDocument",
    "studies.inference.result.SummaryDocument",
    "studies.inference.result.ConfigDocument",
    "hardware.machine.calibration.CalibrationDocument",
    "sampling.nodes.tables.ClusterDocument",
    "hardware.devices.tables.DevicesDocument",
    "hardware.devices.tables.DeviceDocument",
    "costs.operators.tables.OperatorsDocument",
    "sources.workloads.presets.PresetsDocument",
    "sampling.merge.MergeDocument",
    "prediction.lint.tables.LintDocument",
    "prediction.fit.tables.FitDocument",
    "prediction.tables.PredictionDocument",
    "studies.scoring.result.ScoreDocument",
    "studies.compiling.bench.result.CompileDocument",
    "studies.compiling.hot.result.HotDocument",
    "studies.compiling.bench.predicted.PredictedGainDocument",
    "studies.compiling.explain.result.ExplainDocument",
    "sources.traces.file.snapshot.Snapshot",
)


def documents() -> tuple[type[Document], ...]:
    """Every kind of document that a verb or a study writes."""
    places = (name.rpartition(".") for name in _DOCUMENTS)
    return tuple(getattr(import_module(f"rooflight.{module}"), name) for module, _, name in places)


def schemas_text() -> str:
    """All schemas in one file: a definition per document and per part; at the top, any one of the documents."""
    found, parts = msgspec.json.schema_components(documents(), ref_template="#/$defs/{name}")
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What rooflight --json writes",
        "anyOf": list(found),
        "$defs": parts,
    }
    return msgspec.json.format(msgspec.json.encode(whole, order="deterministic"), indent=1).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(schemas_text())
