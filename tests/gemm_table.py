"""Models of products that take exactly twice their bound on an A100."""

from __future__ import annotations

from pathlib import Path

from builders import op, spec
from measured_tables import write_table

from rooflight.devices import get
from rooflight.prediction.fit.fitting import fit
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.read import read
from rooflight.records.signature import OpSignature

A100 = get("A100-SXM4-80GB")
SLOWDOWN = 2.0


def gemm(m: int, n: int, k: int, dtype: str = "float16") -> OpSignature:
    return op("aten::mm", {"self": spec((m, k), dtype), "mat2": spec((k, n), dtype)}, [spec((m, n), dtype)])


def fit_models(folder: Path) -> Path:
    """What ``rooflight fit`` learns from 64 such products, in a folder of its own."""
    tables = read(write_table(folder, slowdown=SLOWDOWN))
    return Predictor.of(fit(tables).models).save(folder / "models")
