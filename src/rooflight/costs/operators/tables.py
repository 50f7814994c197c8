"""The operators that can be sampled and predicted, as a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rooflight.costs.operators.operator import Operator
from rooflight.records.document import Document, Fields
from rooflight.records.report import Report, table


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
    document = OperatorsDocument.view(operators=tuple(operators))
    rows = table(
        "operators",
        "To sample and to predict",
        document.operators,
        ("operator", "", lambda operator: operator.name),
        ("parameters", "", _parameters),
        ("what it runs", "", lambda operator: operator.summary),
        wraps=("parameters", "what it runs"),
    )
    return Report(title="Operators", data=document, tables=(rows,))


def _parameters(operator: OperatorData) -> str:
    defaults = operator.defaults
    return ", ".join(f"{name}={defaults[name]}" if name in defaults else name for name in operator.parameters)
