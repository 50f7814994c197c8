"""Files of models: a numpy archive of JSON and of the arrays of trees, checked when it is read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.model.corrections import (
    AboutCorrection,
    AboutRefinement,
    about_correction,
    about_refinement,
    arrays_of_refinement,
    correction_from,
    refinement_from,
)
from rooflight.prediction.model.devices import DEVICE_TRAITS
from rooflight.prediction.model.model import Expert, Interval, Model, Spread
from rooflight.prediction.model.packing import MOST_LOG, arrays_in, arrays_of, learner_from, trees_from
from rooflight.prediction.work.features import names_of, steady_features
from rooflight.records.quantity import count_of

SCHEMA: Final = "rooflight.model/5"
_MOST_FIGURE: Final = 1e9  # in what is said of an expert


class _About(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is kept of an expert beside its trees."""

    device: str
    traits: dict[str, float]
    rows: int
    low: list[float]
    high: list[float]
    inside: Interval
    outside: Interval
    error: float
    steady: bool  # whether there is a learner for larger work
    launch_s: float
    floor_s: float
    spread: Interval | None  # the ends of its spread
    usual: bool


class _Version(msgspec.Struct):
    schema: str


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    schema: str
    key: str
    features: list[str]  # names, in the order of the experts' ranges
    unseen: Interval
    power: float
    experts: list[_About]
    corrections: list[AboutCorrection]
    refinements: list[AboutRefinement] = []


def encode(model: Model) -> bytes:
    """A model as a numpy archive (.npz): JSON, and the arrays of its trees."""
    arrays: dict[str, NDArray[Any]] = {}
    abouts = []
    for number, expert in enumerate(model.experts):
        abouts.append(
            _About(
                device=expert.device,
                traits=dict(expert.traits),
                rows=expert.rows,
                low=expert.low.tolist(),
                high=expert.high.tolist(),
                inside=expert.inside,
                outside=expert.outside,
                error=expert.error,
                steady=expert.beyond is not None,
                launch_s=expert.launch_s,
                floor_s=expert.floor_s,
                spread=expert.spread.ends if expert.spread else None,
                usual=expert.usual,
            )
        )
        spread = expert.spread.size if expert.spread else None
        for name, learner in (("main", expert.main), ("beyond", expert.beyond), ("spread", spread)):
            fields = arrays_of(learner) if learner else {}
            arrays |= {f"{number}.{name}.{field}": array for field, array in fields.items()}
    for number, correction in enumerate(model.corrections):
        arrays |= {f"{number}.correction.{name}": array for name, array in arrays_of(correction.near).items()}
    for number, refinement in enumerate(model.refinements):
        fields = arrays_of_refinement(refinement)
        arrays |= {f"refinement {number}.{field}": array for field, array in fields.items()}
    file = _File(
        schema=SCHEMA,
        key=model.key,
        features=list(names_of(model.key)),
        unseen=model.unseen,
        power=model.power,
        experts=abouts,
        corrections=[about_correction(each) for each in model.corrections],
        refinements=[about_refinement(each) for each in model.refinements],
    )
    text = np.frombuffer(msgspec.json.encode(file), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=text, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def decode(content: bytes) -> Model:
    """A model from ``encode``. Raises ValueError for anything else: arrays are checked, nothing is executed."""
    try:
        arrays = arrays_in(content)
        text = arrays["about"].tobytes()
        schema = msgspec.json.decode(text, type=_Version).schema
        file = msgspec.json.decode(text, type=_File) if schema == SCHEMA else None
    except Exception as error:  # whatever bytes that make no sense get out of zipfile, numpy and msgspec
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"not a model of rooflight fit ({why}): fit it again") from None
    if file is None:
        raise ValueError(f"a model of another version ({schema[:40]!r}): fit it again")
    if not file.key.isprintable():
        raise ValueError(f"a model of {file.key[:40]!r}, which is no kind of work: fit it again")
    _refuse_other_features(file)
    _refuse_backward(file.key, file.unseen)
    if not 0 <= file.power <= 1:
        raise ValueError(f"the model of {file.key} holds impossible numbers: fit it again")
    experts = tuple(_expert(file.key, number, each, arrays) for number, each in enumerate(file.experts))
    refinements = tuple(
        refinement_from(each, f"refinement {number}", len(names_of(file.key)), len(experts), arrays)
        for number, each in enumerate(file.refinements)
    )
    return Model(
        key=file.key,
        experts=experts,
        unseen=file.unseen,
        power=file.power,
        refinements=refinements,
        corrections=tuple(
            correction_from(each, f"{number}.correction", len(names_of(file.key)), arrays)
            for number, each in enumerate(file.corrections)
        ),
    )


def _expert(key: str, number: int, about: _About, arrays: Mapping[str, NDArray[Any]]) -> Expert:
    count, steady = len(names_of(key)), len(steady_features(key))
    if len(about.low) != count or len(about.high) != count:
        raise ValueError(
            f"a model of {key} with {count_of(len(about.low), 'feature')} instead of {count}: fit it again"
        )
    figures = [*about.low, *about.high, about.rows, about.error, about.launch_s, about.floor_s, *about.traits.values()]
    backward = any(low > high for low, high in zip(about.low, about.high, strict=True))
    _refuse_backward(key, about.inside, about.outside, *([about.spread] if about.spread else []))
    if (
        backward
        or about.rows < 1
        or min(about.launch_s, about.floor_s) < 0
        or not set(about.traits) <= set(DEVICE_TRAITS)
        or not all(map(_plausible, figures))
    ):
        raise ValueError(f"the model of {key} holds impossible numbers: fit it again")
    return Expert(
        device=about.device,
        traits=about.traits,
        rows=about.rows,
        low=np.array(about.low),
        high=np.array(about.high),
        inside=about.inside,
        outside=about.outside,
        error=about.error,
        main=learner_from(f"{number}.main", count, arrays),
        beyond=learner_from(f"{number}.beyond", steady, arrays) if about.steady else None,
        launch_s=about.launch_s,
        floor_s=about.floor_s,
        spread=Spread(size=trees_from(f"{number}.spread", count, arrays), ends=about.spread) if about.spread else None,
        usual=about.usual,
    )


def _refuse_other_features(file: _File) -> None:
    wanted = names_of(file.key)
    if tuple(file.features) != wanted:
        other = sorted(set(file.features) ^ set(wanted))
        named = f" ({', '.join(map(ascii, other[:3]))})" if other else ", or in another order"
        raise ValueError(f"a model of {file.key} by other features{named[:200]}: fit it again")


def _plausible(figure: float) -> bool:
    return abs(figure) < _MOST_FIGURE  # nor NaN


def _refuse_backward(key: str, *intervals: Interval) -> None:
    if not all(-MOST_LOG < low <= 0 <= high < MOST_LOG for low, high in intervals):
        raise ValueError(f"the model of {key} holds impossible numbers: fit it again")
