"""Functions: how long a user's function takes by its parameters alone, where nobody knows its FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np

from rooflight.costs.operators.operator import Operator, Work
from rooflight.costs.operators.sizes import Size
from rooflight.prediction.model.corrections import Interval
from rooflight.prediction.model.packing import MOST_LOG
from rooflight.prediction.model.smooth import Smooth
from rooflight.prediction.work.facts import Floats
from rooflight.records.estimate import Estimate, Source

SUFFIX: Final = ".function.json"


class Curve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """Of one direction, log(seconds) = ``offset`` + ``slope`` [features] · log(features) + what ``rest`` adds, which
    beyond the rows' ranges is as at their edge. ``error``: mean absolute share by which rows held out are missed;
    ``inside`` and ``outside``: 90 % of log(true / predicted) for shapes within and beyond those sampled.
    """

    offset: float
    slope: Floats
    rest: Smooth
    error: float
    inside: Interval
    outside: Interval

    def __post_init__(self) -> None:
        figures = np.array([self.offset, *self.slope, self.rest.reach, self.error])
        likely = all(-MOST_LOG < low <= 0 <= high < MOST_LOG for low, high in (self.inside, self.outside))
        if self.slope.shape != self.rest.scale.shape or not (np.abs(figures) < MOST_LOG).all() or not likely:
            raise ValueError("a curve with impossible numbers")

    def seconds(self, logs: Floats) -> Floats:
        """Seconds [rows] at logarithms of features [rows, features]."""
        answer = self.offset + logs @ self.slope + self.rest.predict(logs)
        return np.asarray(np.exp(np.clip(answer, -MOST_LOG, MOST_LOG)))


class Function(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """What rows of one function on one device in one precision taught. ``dtype`` is torch's name; ``low`` and ``high``
    [parameters] are the rows' ranges. A feature is a product of powers of the parameters: ``powers`` [features,
    parameters].
    """

    name: str
    device: str
    dtype: str
    parameters: tuple[str, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    powers: Floats
    rows: int
    curves: dict[str, Curve]  # by direction
    schema: Literal["rooflight.function/1"] = "rooflight.function/1"

    def __post_init__(self) -> None:
        count, shape = len(set(self.parameters)), self.powers.shape
        features = {len(curve.slope) for curve in self.curves.values()}
        fits = {len(self.parameters), len(self.low), len(self.high)} == {count} and len(shape) == 2
        if not fits or shape != (*features, count) or not (np.abs(self.powers) < MOST_LOG).all():
            raise ValueError("a function whose curves do not fit its parameters")

    @property
    def place(self) -> str:
        """What a file is named after."""
        return f"{self.name} {self.dtype} on {self.device}"

    @property
    def features(self) -> tuple[str, ...]:
        """Its features as text: ``b l``, ``dim / mp``, ``h^0.5``."""
        return tuple(map(self._text, self.powers))

    def _text(self, powers: Floats) -> str:
        named = [(name, power) for name, power in zip(self.parameters, powers.tolist(), strict=True) if power]
        above, below = (
            " ".join(name if abs(power) == 1 else f"{name}^{abs(power):g}" for name, power in named if power * sign > 0)
            for sign in (1, -1)
        )
        return " / ".join((above or "1", *([below] if below else [])))

    @property
    def operator(self) -> Operator:
        """Its parameters as an operator has them: a shape is checked as one is, the work stays unknown."""
        return Operator(
            name=self.name,
            summary=self.name,
            sizes=dict.fromkeys(self.parameters, Size()),
            work=lambda *_: Work(forward=()),
            prepare=_cannot_run,
            directions=tuple(self.curves),
        )

    def predict(self, shape: Mapping[str, int] | Sequence[int]) -> dict[str, Estimate]:
        """Seconds by direction; nothing bounds them. Raises ValueError for a shape that cannot be."""
        operator = self.operator
        whole = operator.shape(shape)
        if (refused := operator.refusal(whole)) is not None:
            raise ValueError(f"{self.name}: {refused}")
        values = np.array([list(whole.values())])
        beyond = bool(((values < self.low) | (values > self.high)).any())
        logs = logs_of(values) @ self.powers.T
        return {direction: _estimate(curve, logs, beyond) for direction, curve in self.curves.items()}


def _cannot_run(*_: object) -> Any:
    raise ValueError("only its times are known")


def logs_of(shapes: Any) -> Floats:
    """Logarithms of parameters [rows, parameters]."""
    return np.asarray(np.log(np.maximum(np.asarray(shapes, dtype=np.float64), 0.5)))  # 0 is a size too


def _estimate(curve: Curve, logs: Floats, beyond: bool) -> Estimate:
    time_s = float(curve.seconds(logs)[0])
    low, high = curve.outside if beyond else curve.inside
    ends = {"low_s": time_s * np.exp(low).item(), "high_s": time_s * np.exp(high).item()}
    return Estimate(time_s=time_s, **ends, bound_s=0.0, source=Source.REGRESSED, extrapolated=beyond)


def encode(function: Function) -> bytes:
    """A function as JSON."""
    return msgspec.json.encode(function, enc_hook=np.ndarray.tolist)


def decode(content: bytes) -> Function:
    """A function from ``encode``. Raises ValueError for anything else."""
    try:
        return msgspec.json.decode(content, type=Function, dec_hook=_array)
    except (ValueError, TypeError, RecursionError) as error:  # of msgspec too
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"no function of rooflight fit ({why}): fit it again") from None


def _array(_: type, numbers: Any) -> Floats:
    return np.array(numbers, dtype=np.float64)
