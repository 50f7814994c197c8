"""The operators that can be sampled and predicted, as a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rooflight.operators.operator import Operator
from rooflight.records.document import Document, Fields
from rooflight.records.report import Column, Report, Table


class OperatorData(Fields, frozen=True, kw_only=True):
    """An operator: the integers of its shape, in the order of a table's columns, and those that may be left out."""

    name: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, int]
    summary: str


class OperatorsDocument(Document, frozen=True, kw_only=True, tag="rooflight.operators/1"):
    """The operators known."""

    operators: tuple[OperatorData, ...]


def report_of(operators: Iterable[Operator]) -> Report:
    """One row an operator."""
    found = tuple(
        OperatorData(
            name=operator.name,
            parameters=tuple(operator.parameters),
            defaults=dict(operator.defaults),
            summary=operator.summary,
        )
        for operator in operators
    )
    return Report(
        title="Operators",
        data=OperatorsDocument(operators=found),
        tables=(
            Table(
                id="operators",
                title="To sample and to predict",
                columns=(Column("operator"), Column("parameters", wraps=True), Column("what it runs", wraps=True)),
                rows=tuple((each.name, _parameters(each), each.summary) for each in found),
            ),
        ),
    )


def _parameters(operator: OperatorData) -> str:
    defaults = operator.defaults
    return ", ".join(f"{name}={defaults[name]}" if name in defaults else name for name in operator.parameters)
