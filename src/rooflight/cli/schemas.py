"""The JSON Schema of everything that ``--json`` writes.

``python -m rooflight.cli.schemas > docs/reference/schemas.json``
"""

from __future__ import annotations

import sys

from rooflight.records.document import Document


def documents() -> tuple[type[Document], ...]:
    """Every kind of document that a verb or a study writes."""
    from rooflight.compiling.bench.predicted import PredictedGainDocument
    from rooflight.compiling.bench.result import CompileDocument
    from rooflight.compiling.explain.result import ExplainDocument
    from rooflight.compiling.hot.result import HotDocument
    from rooflight.costs.operators.tables import OperatorsDocument
    from rooflight.devices.tables import DeviceDocument, DevicesDocument
    from rooflight.inference.result import ConfigDocument, SummaryDocument
    from rooflight.machine.calibration import CalibrationDocument
    from rooflight.prediction.fit.tables import FitDocument
    from rooflight.prediction.lint.tables import LintDocument
    from rooflight.prediction.tables import PredictionDocument
    from rooflight.roofline.ranks import RanksDocument
    from rooflight.roofline.tables.document import AnalysisDocument
    from rooflight.sampling.merge import MergeDocument
    from rooflight.sampling.nodes.tables import ClusterDocument
    from rooflight.scoring.result import ScoreDocument
    from rooflight.tracking.report import StepDocument
    from rooflight.workloads.presets import PresetsDocument

    return (
        AnalysisDocument,
        RanksDocument,
        StepDocument,
        SummaryDocument,
        ConfigDocument,
        CalibrationDocument,
        ClusterDocument,
        DevicesDocument,
        DeviceDocument,
        OperatorsDocument,
        PresetsDocument,
        MergeDocument,
        LintDocument,
        FitDocument,
        PredictionDocument,
        ScoreDocument,
        CompileDocument,
        HotDocument,
        PredictedGainDocument,
        ExplainDocument,
    )


def schemas_text() -> str:
    """All schemas in one file: a definition per document and per part; at the top, any one of the documents."""
    import msgspec

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
