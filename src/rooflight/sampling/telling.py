"""Telling: which shape to sample next, so that all others are known best for the time it takes.

A Gaussian process over the shapes, with a Matern 3/2 kernel, knows how sure it would be of each shape after one more
row, whatever time that row takes. Chosen is the row that lowers the variance of all candidates, by their use, the most
for each second (Cohn, Ghahramani and Jordan, Active Learning with Statistical Models, 1996). Where models of several
devices are asked for each shape, shapes at which they differ vary more, and alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NOISE: Final = 0.05
_OFFSET: Final = 1.0
_OF_VIEWS: Final = 10.0
"""Variances of a row's noise, of what all shapes have in common, and of a unit by which models of other devices differ
from their average (e-fold), over that of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """Shapes as points [shapes, dimensions], in units in which two have little in common, and what each model answers
    less the average of all, ``views`` [shapes, models] as logarithms; no model where none is asked.
    """

    places: Floats
    views: Floats

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, some: slice) -> Points:
        return Points(places=self.places[some], views=self.views[some])

    def covariance(self, other: Points) -> Floats:
        """Between these shapes and others, [these, others]."""
        squares = (self.places**2).sum(axis=1)[:, None] + (other.places**2).sum(axis=1)[None, :]
        apart = np.maximum(0.0, squares - 2 * self.places @ other.places.T) / max(1, self.places.shape[1])
        root = np.sqrt(3 * apart)
        alike = self.views @ other.views.T / max(1, self.views.shape[1])
        return np.asarray((1 + root) * np.exp(-root) + _OFFSET + _OF_VIEWS * alike)


def most_telling(sampled: Points, candidates: Points, use: Floats, seconds: Floats) -> int:
    """The candidate after which all are known best, by their ``use`` [candidates], for each of its ``seconds``
    [candidates]. ``sampled`` have a row each already.
    """
    spread = candidates.covariance(candidates)
    if len(sampled):
        known = sampled.covariance(sampled) + _NOISE * np.eye(len(sampled))
        shared = sampled.covariance(candidates)
        spread = spread - shared.T @ np.linalg.solve(known, shared)
    gain = use @ spread**2 / (np.diag(spread) + _NOISE)
    return int(np.argmax(gain / seconds))
