"""Scores a kernel: its results and times beside its problem, eager and compiled, and beside the bounds."""

from typing import TYPE_CHECKING

from rooflight.records.package import lazy_exports

if TYPE_CHECKING:
    from .result import Score as Score
    from .run import score as score

_HOMES = {"Score": f"{__name__}.result", "score": f"{__name__}.run"}

__all__ = [*_HOMES]  # noqa: PLE0604 - names of the table above
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
