"""A diagnosis as a report: what ``rooflight diagnose`` shows, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.records.document import Document
from rooflight.records.quantity import Quantity, percent
from rooflight.records.report import Report, Table, table
from rooflight.roofline.costed import CostedSession
from rooflight.roofline.findings import Applied, Diagnosis, Finding, NotWorthIt, Regime, RegimeShare, Scaling
from rooflight.roofline.tables.findings import findings_facts, findings_table, regime_text, regimes_table
from rooflight.roofline.tables.report import conclusion
from rooflight.roofline.tables.run import of_script


class DiagnosisDocument(Document, frozen=True, kw_only=True, tag="rooflight.diagnosis/1"):
    """The regime of a step, its phases and layers, and the findings, what gains most first; ``applied``: the remedies
    that were tried, ``scaling`` the doubled batch.
    """

    target: str
    device: str
    step_s: float
    source: str
    regime: Regime
    confidence: float
    shares: dict[str, float]
    phases: tuple[RegimeShare, ...]
    layers: tuple[RegimeShare, ...]
    findings: tuple[Finding, ...]
    not_worth_it: tuple[NotWorthIt, ...]
    missing: tuple[str, ...]
    applied: tuple[Applied, ...] = ()
    scaling: Scaling | None = None
    conclusion: str


def report_of(
    analysis: CostedSession,
    found: Diagnosis,
    applied: tuple[Applied, ...] = (),
    scaling: Scaling | None = None,
    notes: Iterable[str] = (),
) -> Report:
    """The report of a diagnosis."""
    verdict = of_script(analysis.session.run, conclusion(analysis))
    text = _verdict(found) if found.step_s else verdict
    return Report(
        title=f"Diagnosis: {analysis.target or 'recorded session'} on {analysis.device.name}",
        data=DiagnosisDocument.view(
            found,
            target=analysis.target,
            device=analysis.device.name,
            applied=applied,
            scaling=scaling,
            conclusion=text,
        ),
        facts=(*findings_facts(found), *_scaling_facts(scaling)),
        tables=tuple(_tables(found, applied)),
        notes=(*notes, *analysis.session.notes),
        conclusion=text if text == verdict else f"{verdict} {text}",
    )


def _verdict(found: Diagnosis) -> str:
    text = f"Most of the step is {regime_text(found)}."
    if not found.findings:
        return f"{text} Nothing was found that would gain 3% or more."
    first = found.findings[0]
    gain = f"{Quantity(first.predicted_gain_s, 's')} of {Quantity(found.step_s, 's')}"
    return f"{text} First: {first.title}. The remedy would gain about {gain}: {first.remedy}."


def _scaling_facts(scaling: Scaling | None) -> Iterable[tuple[str, str]]:
    if scaling is not None:
        yield (
            "doubled batch",
            f"{percent(scaling.work - 1)} more work takes {percent(scaling.time - 1)} more time: "
            f"{'overhead' if scaling.is_overhead else 'work'} decides",
        )


def _tables(found: Diagnosis, applied: tuple[Applied, ...]) -> Iterable[Table]:
    if found.findings:
        yield findings_table(found)
    if applied:
        yield table(
            "applied",
            "Remedies that were tried",
            applied,
            ("remedy", "", lambda each: each.id),
            ("predicted gain", "s", lambda each: each.predicted_gain_s),
            ("measured gain", "s", lambda each: each.measured_gain_s),
            ("results", "", lambda each: each.results),
        )
    if found.phases:
        yield regimes_table("phases", "Regime by phase", found.phases)
    if found.layers:
        yield regimes_table("layers", "Regime by layer type", found.layers)
