"""A diagnosis as a report: what ``rooflight diagnose`` shows, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.records.document import Document
from rooflight.records.quantity import percent
from rooflight.records.report import Report, Table, table
from rooflight.roofline.account.account import Account, AccountFields
from rooflight.roofline.account.accounted import Accounted
from rooflight.roofline.findings import Applied, Diagnosis, Scaling
from rooflight.roofline.tables.findings import answer, findings_facts, findings_table, hot_spots_table, regimes_table
from rooflight.roofline.tables.report import conclusion
from rooflight.roofline.tables.run import of_script
from rooflight.roofline.tables.tables import account_table


class DiagnosisDocument(Diagnosis, Document, frozen=True, kw_only=True, tag="rooflight.diagnosis/1"):
    """The diagnosis of a target; ``applied``: the remedies that were tried, ``scaling`` the doubled batch."""

    target: str
    device: str
    applied: tuple[Applied, ...] = ()
    scaling: Scaling | None = None
    account: AccountFields
    conclusion: str


def report_of(
    analysis: Accounted,
    found: Diagnosis,
    applied: tuple[Applied, ...] = (),
    scaling: Scaling | None = None,
    notes: Iterable[str] = (),
) -> Report:
    """The report of a diagnosis."""
    text = of_script(analysis.session.run, " ".join(filter(None, (answer(found), conclusion(analysis)))))
    return Report(
        title=f"Diagnosis: {analysis.target or 'recorded session'} on {analysis.device.name}",
        data=DiagnosisDocument.view(
            found,
            target=analysis.target,
            device=analysis.device.name,
            applied=applied,
            scaling=scaling,
            account=analysis.account,
            conclusion=text,
        ),
        facts=(*findings_facts(found, analysis.account), *_scaling_facts(scaling)),
        tables=tuple(_tables(found, analysis.account, applied)),
        notes=(*notes, *analysis.session.notes),
        conclusion=text,
    )


def _scaling_facts(scaling: Scaling | None) -> Iterable[tuple[str, str]]:
    if scaling is not None:
        more = f"{percent(scaling.work - 1)} more work takes "
        if scaling.time < 1:
            yield "doubled batch", f"{more}less time: measure again on a quiet machine"
        else:
            decides = "overhead" if scaling.is_overhead else "work"
            yield "doubled batch", f"{more}{percent(scaling.time - 1)} more time: {decides} decides"


def _tables(found: Diagnosis, account: Account, applied: tuple[Applied, ...]) -> Iterable[Table]:
    if found.findings:
        yield findings_table(found)
    if found.hot_spots:
        yield hot_spots_table(found.hot_spots)
    if account.wall_s:
        yield account_table(account)
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
