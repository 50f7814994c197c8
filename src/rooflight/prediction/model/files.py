"""Files of models: a numpy archive of JSON and of the arrays of learners, checked when it is read."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.model.corrections import (
    LENGTHS,
    MOST_POINTS,
    Correction,
    Interval,
    Learned,
    Process,
    Refinement,
    RefinementFigures,
)
from rooflight.prediction.model.devices import DEVICE_TRAITS
from rooflight.prediction.model.model import Expert, ExpertFigures, Model, Spread
from rooflight.prediction.model.packing import (
    MOST_LOG,
    Arrays,
    arrays_in,
    arrays_of,
    learner_from,
    process_from,
    trees_from,
)
from rooflight.prediction.work.features import names_of, steady_features

SCHEMA: Final = "rooflight.model/5"
_MOST_FIGURE: Final = 1e9  # in what is said of an expert
_FLOAT: Final = np.dtype("<f4")
_PROCESS: Final = ("points", "weight", "views")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AboutExpert(ExpertFigures):
    steady: bool  # whether there is a learner for larger work
    spread: Interval | None  # the ends of its spread


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AboutRefinement(RefinementFigures):
    unit: list[float]
    seen: list[Interval] | None


class _Version(msgspec.Struct):
    schema: str


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    schema: str
    key: str
    features: list[str]  # names, in the order of the experts' ranges
    unseen: Interval
    power: float
    experts: list[_AboutExpert]
    corrections: list[Learned]
    refinements: list[_AboutRefinement] = []


def encode(model: Model) -> bytes:
    """A model as a numpy archive (.npz): JSON, and the arrays of its trees."""
    arrays: dict[str, NDArray[Any]] = {}
    experts, refinements = [], []
    for number, each in enumerate(model.experts):
        spread = each.spread.ends if each.spread else None
        experts.append(_AboutExpert(**_figures(each, ExpertFigures), steady=each.beyond is not None, spread=spread))
        size = each.spread.size if each.spread else None
        for name, learner in (("main", each.main), ("beyond", each.beyond), ("spread", size)):
            if learner:
                arrays |= {f"{number}.{name}.{field}": array for field, array in arrays_of(learner).items()}
    for number, correction in enumerate(model.corrections):
        arrays |= {f"{number}.correction.{name}": array for name, array in arrays_of(correction.near).items()}
    for number, added in enumerate(model.refinements):
        process = added.process
        unit = process.unit.tolist() if process else []
        seen = [(low, high) for low, high in process.seen.tolist()] if process else None
        refinements.append(_AboutRefinement(**_figures(added, RefinementFigures), unit=unit, seen=seen))
        for name in _PROCESS if process else ():
            arrays[f"refinement {number}.{name}"] = getattr(process, name).reshape(-1).astype(_FLOAT)
    file = _File(
        schema=SCHEMA,
        key=model.key,
        features=list(names_of(model.key)),
        unseen=model.unseen,
        power=model.power,
        experts=experts,
        corrections=[Learned(**_figures(each, Learned)) for each in model.corrections],
        refinements=refinements,
    )
    text = np.frombuffer(msgspec.json.encode(file, enc_hook=np.ndarray.tolist), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=text, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _figures(learned: Learned, kind: type[Learned]) -> dict[str, Any]:
    return {each.name: getattr(learned, each.name) for each in fields(kind)}


def decode(content: bytes) -> Model:
    """A model from ``encode``. Raises ValueError for anything else: arrays are checked, nothing is executed."""
    try:
        arrays = arrays_in(content)
        text = arrays["about"].tobytes()
        schema = msgspec.json.decode(text, type=_Version).schema
        file = msgspec.json.decode(text, type=_File, dec_hook=_array) if schema == SCHEMA else None
    except Exception as error:  # whatever bytes that make no sense get out of zipfile, numpy and msgspec
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"not a model of rooflight fit ({why}): fit it again") from None
    if file is None:
        raise ValueError(f"a model of another version ({schema[:40]!r}): fit it again")
    if not file.key.isprintable():
        raise ValueError(f"a model of {file.key[:40]!r}, which is no kind of work: fit it again")
    _refuse_other_features(file)
    count = len(file.features)
    likely = 0 <= file.power <= 1 and _are_likely(file.unseen)
    likely &= all(_is_likely(each, count, each.outside) and _is_likely_expert(each) for each in file.experts)
    likely &= all(_is_likely(each, count) for each in file.corrections)
    likely &= all(_is_likely(each, count, each.outside) and _is_likely_refinement(each) for each in file.refinements)
    if not likely:
        raise ValueError(f"the model of {file.key} holds impossible numbers: fit it again")
    experts = tuple(_expert(file.key, number, each, arrays) for number, each in enumerate(file.experts))
    return Model(
        key=file.key,
        experts=experts,
        unseen=file.unseen,
        power=file.power,
        corrections=tuple(
            Correction(**_figures(each, Learned), near=process_from(f"{number}.correction", count, arrays))
            for number, each in enumerate(file.corrections)
        ),
        refinements=tuple(
            Refinement(
                **_figures(each, RefinementFigures),
                process=_process(each, f"refinement {number}", len(experts), arrays) if each.seen is not None else None,
            )
            for number, each in enumerate(file.refinements)
        ),
    )


def _array(_: type, numbers: Any) -> NDArray[np.float64]:
    return np.array(msgspec.convert(numbers, list[float]), dtype=np.float64)


def _expert(key: str, number: int, about: _AboutExpert, arrays: Arrays) -> Expert:
    count, steady = len(names_of(key)), len(steady_features(key))
    return Expert(
        **_figures(about, ExpertFigures),
        main=learner_from(f"{number}.main", count, arrays),
        beyond=learner_from(f"{number}.beyond", steady, arrays) if about.steady else None,
        spread=Spread(size=trees_from(f"{number}.spread", count, arrays), ends=about.spread) if about.spread else None,
    )


def _process(about: _AboutRefinement, name: str, experts: int, arrays: Arrays) -> Process:
    whole = [arrays.get(f"{name}.{field}") for field in _PROCESS]
    points, weight, views = (
        np.full(1, np.nan) if each is None or each.dtype != _FLOAT else each.astype(np.float64) for each in whole
    )
    rows, unit, seen = len(weight) // len(LENGTHS), np.array(about.unit), np.array(about.seen).reshape(-1, 2)
    if (
        not 1 <= rows <= MOST_POINTS
        or (len(weight), len(points)) != (rows * len(LENGTHS), rows * len(about.low))
        or len(unit) != len(about.low)
        or len(views) not in (0, experts)
        or len(seen) != len(views)
        or not all(np.isfinite(each).all() for each in (points, weight, views, unit, seen))
        or (unit < 0).any()
        or (seen[:, 0] > seen[:, 1]).any()
    ):
        raise ValueError(f"no model of rooflight fit ({name}: rows whose arrays do not fit): fit it again")
    points, weight = points.reshape(rows, -1), weight.reshape(len(LENGTHS), rows)
    return Process(unit=unit, points=points, weight=weight, views=views, seen=seen)


def _refuse_other_features(file: _File) -> None:
    wanted = names_of(file.key)
    if tuple(file.features) != wanted:
        other = sorted(set(file.features) ^ set(wanted))
        named = f" ({', '.join(map(ascii, other[:3]))})" if other else ", or in another order"
        raise ValueError(f"a model of {file.key} by other features{named[:200]}: fit it again")


def _is_likely(learned: Learned, features: int, *intervals: Interval) -> bool:
    """Whether figures can be those of a fit: as many as there are features, finite, and in order."""
    return (
        len(learned.low) == len(learned.high) == features
        and bool((learned.low <= learned.high).all())
        and _are_plausible([*learned.low, *learned.high, learned.rows, learned.error])
        and learned.rows >= 1
        and _are_likely(learned.inside, *intervals)
    )


def _is_likely_expert(expert: _AboutExpert) -> bool:
    return (
        min(expert.launch_s, expert.floor_s) >= 0
        and set(expert.traits) <= set(DEVICE_TRAITS)
        and _are_plausible([expert.launch_s, expert.floor_s, *expert.traits.values()])
        and (expert.spread is None or _are_likely(expert.spread))
    )


def _is_likely_refinement(added: _AboutRefinement) -> bool:
    return (
        min(added.launch_s, added.least_s) >= 0
        and max(added.launch_s, added.least_s) < 1
        and _are_plausible([added.error_before, added.offset])
        and -MOST_LOG < added.floor <= added.ceiling < MOST_LOG
    )


def _are_plausible(figures: Sequence[float]) -> bool:
    return all(abs(figure) < _MOST_FIGURE for figure in figures)  # nor NaN


def _are_likely(*intervals: Interval) -> bool:
    return all(-MOST_LOG < low <= 0 <= high < MOST_LOG for low, high in intervals)
