"""The presets as a report: what ``rooflight presets`` shows."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.records.document import Document, Fields
from rooflight.records.report import Column, Report, Table
from rooflight.workloads.kinds import KINDS
from rooflight.workloads.preset import Preset


class PresetData(Fields, frozen=True, kw_only=True):
    """A public architecture by name. ``parameters`` count tied embeddings once; ``seq`` is null where an input has no
    length to choose; ``source`` is where its shapes are published.
    """

    name: str
    description: str
    kind: str
    model_type: str
    parameters: int
    batch: int
    seq: int | None
    modes: tuple[str, ...]
    source: str


class PresetsDocument(Document, frozen=True, kw_only=True, tag="rooflight.presets/1"):
    """The presets that ``rooflight analyze`` takes."""

    presets: tuple[PresetData, ...]


def report_of(presets: Iterable[Preset]) -> Report:
    """One row per preset."""
    found = tuple(map(_data, presets))
    return Report(
        title="Presets",
        data=PresetsDocument(presets=found),
        tables=(
            Table(
                id="presets",
                title="Public architectures, with random weights",
                columns=(
                    Column("preset"),
                    Column("kind"),
                    Column("parameters"),
                    Column("batch"),
                    Column("seq"),
                    Column("shapes from", wraps=True),
                ),
                rows=tuple(
                    (each.name, each.kind, each.parameters, each.batch, each.seq, _short(each.source)) for each in found
                ),
                optional=("kind", "batch", "seq"),
                note="Batch and seq are defaults. Analyze one: rooflight analyze NAME; --small takes a reduced size.",
            ),
        ),
    )


def _short(source: str) -> str:
    return source.removeprefix("https://").replace("/blob/main/config.json", "")


def _data(preset: Preset) -> PresetData:
    return PresetData(
        name=preset.name,
        description=preset.description,
        kind=preset.kind,
        model_type=preset.model_type,
        parameters=preset.parameters,
        batch=preset.batch,
        seq=None if preset.kind == "image-classification" else preset.seq,
        modes=KINDS[preset.kind].modes,
        source=preset.source,
    )
