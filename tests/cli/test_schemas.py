"""Each document that ``--json`` writes decodes strictly into its schema, and the published schemas are theirs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Union

import msgspec
import pytest
from builders import op, spec
from calibrated import calibration_of, roofs_of
from scoring_problems import score_by_hand
from sessions import Call, session_of

from rooflight.costs.operators import registry
from rooflight.costs.operators.tables import report_of as operators_report
from rooflight.devices import all_devices, get
from rooflight.diagnosis.diagnose import diagnose
from rooflight.diagnosis.tables import report_of as diagnosis_report
from rooflight.front.snapshots import report_of_snapshot
from rooflight.hardware.devices.tables import device_report, list_report
from rooflight.hardware.machine.calibration import report_of as calibration_report
from rooflight.inference import Profiler
from rooflight.prediction.fit.fitting import Fit
from rooflight.prediction.fit.tables import report_of as fit_report
from rooflight.prediction.lint.findings import Finding, Rule
from rooflight.prediction.lint.tables import report_of as lint_report
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.read import read
from rooflight.prediction.tables import report_of as predict_report
from rooflight.records.estimate import Estimate, Source
from rooflight.records.report import Report
from rooflight.reporting.json import render_json
from rooflight.reporting.schemas import documents, schemas_text
from rooflight.roofline.analysis import analyze
from rooflight.roofline.ranks import merge, ranks_report
from rooflight.roofline.tables.report import report_of
from rooflight.sampling.merge import MergeDocument
from rooflight.sampling.merge import report_of as merge_report
from rooflight.sampling.nodes.calibrate import ClusterCalibration
from rooflight.sampling.nodes.roofs import NodeCalibration
from rooflight.sampling.nodes.tables import report_of as cluster_report
from rooflight.sources.workloads.presets import PRESETS
from rooflight.sources.workloads.presets import report_of as presets_report
from rooflight.studies.compiling.bench.predicted import PredictedGainDocument
from rooflight.studies.compiling.bench.result import CompileDocument
from rooflight.studies.compiling.explain.result import ExplainDocument
from rooflight.studies.compiling.hot.result import HotDocument
from rooflight.studies.inference.report import report_of as inference_report
from rooflight.studies.inference.result import ConfigDocument
from rooflight.studies.scoring.tables import report_of as score_report
from rooflight.studies.tracking.report import report_of_analysis

H100 = get("H100-SXM5-80GB")
BIG = spec((1024, 1024), "bfloat16")
MM = op("aten::mm", {"self": BIG, "mat2": BIG}, [BIG])
ODD = op("nobody::knows", {"x": BIG}, [BIG])
ESTIMATE = Estimate(time_s=2e-3, low_s=1e-3, high_s=3e-3, bound_s=1e-4, source=Source.REGRESSED, extrapolated=False)
ROOFS = roofs_of(1e12, 1e11)
CPU = calibration_of(ROOFS)


def analysis(*, measured: bool = True, rank: int = 0):
    calls = [Call(op=MM, layer="Linear", function="matmul", reads=(0,), writes=(1,)), Call(op=ODD, writes=(2,))]
    times = {"times": [[2e-3, 1e-3]], "walls": [4e-3]} if measured else {}
    environment = {"rank": str(rank), "world_size": "2"}
    session = session_of(calls, **times, storage_bytes=[1 << 21] * 3, environment=environment)
    return analyze(session, H100, "a test", [ESTIMATE, None] if measured else None)


def profiler(folder: Path) -> Profiler:
    """With a run that was measured, of a batch that nobody knows."""
    given = {"output_dir": folder, "run_name": "x", "warmup_runs": 0, "model_profiling": True, "print_per_run": False}
    prof = Profiler(given, device="cpu")
    prof.begin_run()
    with prof.step_timing_ctx(), prof.cuda_bucket_timer("odd"):
        prof.set_step_tokens(3)
    prof.end_run()
    return prof


def reports(folder: Path) -> dict[str, Report]:
    from measured_tables import write_table

    (table,) = read(write_table(folder))
    finding = Finding(source=table.source, kernel="gemm", device=table.device.name, row=3, line=5, direction="step",
                      rule=Rule.OUTLIER, evidence="", factor=2.0)  # fmt: skip
    measured = profiler(folder)
    snapshot = folder / "one.pickle"
    block = {"size": 60, "state": "active_allocated", "frames": [{"filename": "train.py", "line": 3, "name": "f"}]}
    snapshot.write_bytes(pickle.dumps({"segments": [{"total_size": 100, "blocks": [block]}]}))
    settings = msgspec.json.decode(measured.save_config({"note": [1, None]}).read_bytes(), type=ConfigDocument)
    nodes = (NodeCalibration(node="a", calibration=CPU), NodeCalibration(node="b", reason="it is off"))
    return {
        "analysis": report_of(analysis()),
        "diagnosis": diagnosis_report(analysis(), diagnose(analysis())),
        "unmeasured": report_of(analysis(measured=False)),
        "nothing": report_of(analyze(session_of([]), H100)),
        "ranks": ranks_report(merge([analysis(rank=0), analysis(rank=1)])),
        "step": report_of_analysis(analysis(), title="a step"),
        "inference": inference_report(measured.summary()),
        "inference_config": Report(title="settings", data=settings),
        "calibration": calibration_report(CPU, None),
        "cluster": cluster_report(ClusterCalibration(measured=nodes), title="Nodes"),
        "devices": list_report(all_devices()),
        "device": device_report(H100.with_calibration(ROOFS)),
        "operators": operators_report(map(registry.find, registry.names())),
        "presets": presets_report(PRESETS.values()),
        "snapshot": report_of_snapshot([str(snapshot)], None, 10),
        "merge": merge_report(MergeDocument(path="x.csv", files=2, rows=3, duplicates=1, repeated=0)),
        "lint": lint_report([folder], [table], [finding], skipped=[folder / "notes.csv"]),
        "fit": fit_report(Fit(models=tuple(Predictor().models.values()), few={"gemm": 3}), [table], [finding], folder),
        "prediction": predict_report("gemm", {"m": 4}, "bf16", H100, {"fwd": ESTIMATE, "bwd": ESTIMATE}),
        "score": score_report(score_by_hand(3e-2, 2e-2, 1e-2)),
    }


@pytest.fixture(scope="module")
def every_report(tmp_path_factory) -> dict[str, Report]:
    return reports(tmp_path_factory.mktemp("data"))


def test_every_document_decodes_strictly_into_what_it_was(every_report):
    anything = Union[documents()]  # noqa: UP007 - made of a tuple
    for name, report in every_report.items():
        decoded = msgspec.json.decode(render_json(report), type=anything)
        assert type(decoded) is type(report.data), name
        assert decoded == report.data, name
    # documents of what compiles are decoded in tests/compiling
    compiling = {CompileDocument, ExplainDocument, HotDocument, PredictedGainDocument}
    assert {type(report.data) for report in every_report.values()} == set(documents()) - compiling


def test_a_field_that_the_schema_does_not_have_is_refused(every_report):
    for report in every_report.values():
        more = msgspec.json.decode(render_json(report)) | {"more": 1}
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.json.decode(msgspec.json.encode(more), type=type(report.data))


def test_every_schema_has_a_name_and_a_version_of_its_own():
    names = [document.schema() for document in documents()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("rooflight.") and name.rpartition("/")[2].isdigit() for name in names)


def test_the_published_schemas_are_those_of_the_code():
    published = (Path(__file__).parents[2] / "docs" / "reference" / "schemas.json").read_text()
    assert published == schemas_text(), "run: python -m rooflight.reporting.schemas > docs/reference/schemas.json"
