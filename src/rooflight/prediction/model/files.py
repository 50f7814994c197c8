"""Files of models: numpy archives of JSON and of the arrays of learners, checked when they are read. And manifests:
what a folder's models were learned from, and with what; a file that is not the one listed is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import DEVNULL, PIPE, SubprocessError, run
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.model.corrections import (
    LENGTHS,
    MOST_POINTS,
    Correction,
    ExpertFigures,
    Interval,
    Learned,
    Process,
    Refinement,
    RefinementFigures,
)
from rooflight.prediction.model.devices import DEVICE_TRAITS
from rooflight.prediction.model.model import Expert, Model, Spread
from rooflight.prediction.model.packing import (
    MOST_LOG,
    Arrays,
    archive,
    arrays_in,
    arrays_of,
    learner_from,
    process_from,
    trees_from,
)
from rooflight.prediction.work.features import names_of, steady_features
from rooflight.records.files import write_whole

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
    return archive(msgspec.json.encode(file, enc_hook=np.ndarray.tolist), arrays)


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


NAME: Final = "manifest.json"
MANIFEST_SCHEMA: Final = "rooflight.manifest/1"
_LIBRARIES: Final = ("rooflight", "numpy", "lightgbm", "scipy")


class Base(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The models on top of which rows were learned: "shipped" or a folder's name, and the SHA-256 of a line for each
    model's file, in the order of their names: name, blank, SHA-256.
    """

    name: str
    sha256: str


class Source(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """One fit: the SHA-256 of each file that it read, by name, the commit of Rooflight's sources (empty where they are
    in no repository), the versions of libraries, and what it was learned on top of.
    """

    files: dict[str, str]
    commit: str
    libraries: dict[str, str]
    on: Base | None = None


class Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A model's file: its kind of work, its SHA-256, and the place of its fit in the manifest."""

    key: str
    sha256: str
    fit: int


class Manifest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Models by the names of their files, and the fits that made them."""

    schema: str
    models: dict[str, Entry]
    fits: list[Source]


def read_manifest(folder: Path, *, whole: bool = False) -> Manifest | None:
    """The manifest of a folder of models, None where there is none. Raises ValueError for what is none, and where the
    folder is to be ``whole`` for one that lists files which are not there.
    """
    path = folder / NAME
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no manifest of rooflight fit ({_line(error)}): fit the models again") from None
    if found.schema != MANIFEST_SCHEMA or any(not 0 <= entry.fit < len(found.fits) for entry in found.models.values()):
        raise ValueError(f"{path}: no manifest that this version reads: fit the models again")
    lost = [name for name in found.models if not (folder / name).is_file()] if whole else []
    if lost:
        more = f" and {len(lost) - 1} more" if lost[1:] else ""
        raise ValueError(f"{path} lists {lost[0]}{more}, not in the folder: copy it whole, or fit the models again")
    return found


def check(manifest: Manifest | None, path: Path, content: bytes) -> None:
    """Raises ValueError where a folder has a manifest and a model's file is not the one that it lists."""
    if manifest is None:
        return
    entry = manifest.models.get(path.name)
    if entry is None:
        raise ValueError(f"{path} is not in {NAME} beside it: fit it again, or move it elsewhere")
    if sha256(content).hexdigest() != entry.sha256:
        raise ValueError(f"{path} is not the file that {NAME} beside it lists: fit it again")


def write_manifest(
    folder: Path,
    keys: Mapping[str, str],
    learned_from: Iterable[Path],
    *,
    on: Base | None = None,
    inherited: Manifest | None = None,
) -> Path:
    """List models in a folder, by file name with their kinds of work, as learned from files, on top of others where
    ``on`` says so. Models of earlier fits that are still there stay listed, and those ``inherited`` are listed as where
    they come from. Returns the manifest's path. Raises ValueError for an older one that cannot be read.
    """
    entries: dict[str, Entry] = {}
    fits: list[Source] = []
    taken = set(keys)
    for earlier in (inherited, read_manifest(folder)):
        if earlier is not None:
            listed = {name: e for name, e in earlier.models.items() if name not in taken and (folder / name).exists()}
            used = sorted({entry.fit for entry in listed.values()})
            entries |= {
                name: Entry(key=entry.key, sha256=entry.sha256, fit=len(fits) + used.index(entry.fit))
                for name, entry in listed.items()
            }
            fits += [earlier.fits[place] for place in used]
            taken |= set(listed)
    entries |= {
        name: Entry(key=key, sha256=_digest(folder / name), fit=len(fits)) for name, key in sorted(keys.items())
    }
    fits.append(Source(files=_digests(learned_from), commit=_commit(), libraries=_libraries(), on=on))
    manifest = Manifest(schema=MANIFEST_SCHEMA, models=dict(sorted(entries.items())), fits=fits)
    write_whole(folder / NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    return folder / NAME


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """By the part of each path that is not common to all: a manifest says nothing of the machine that made it."""
    named = sorted({path.absolute() for path in paths})  # links as they are called
    if not named:
        return {}
    common = Path(os.path.commonpath([path.parent for path in named]))
    return {path.relative_to(common).as_posix(): _digest(path) for path in named}


def _libraries() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Of the repository that holds these sources, not of one that an environment is in; "" where there is none."""
    here = Path(__file__).resolve().parents[1]
    command = ("git", "-C", str(here), "rev-parse", "--show-toplevel", "HEAD")
    try:
        found = run(command, stdout=PIPE, stderr=DEVNULL, text=True, timeout=10, check=True).stdout.split("\n")
    except (OSError, SubprocessError):
        return ""
    return found[1] if Path(found[0]).resolve() / "src" / "rooflight" / "prediction" == here else ""


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
