"""Rows on top of other models: devices added to the models of a folder, such as those that come with Rooflight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from rooflight.prediction.fit.experts import LEAST_ROWS, teach, with_reached
from rooflight.prediction.fit.few_rows import FEWEST, refine, unrefined
from rooflight.prediction.fit.fitting import Added, Fit, Progress, learn_all, workers
from rooflight.prediction.fit.rows import Shown, by_device, joined, launch_inside_s, together
from rooflight.prediction.model.corrections import Refinement
from rooflight.prediction.model.files import (
    MANIFEST_SCHEMA,
    Base,
    Entry,
    Manifest,
    Source,
    check,
    decode,
    read_manifest,
    write_manifest,
)
from rooflight.prediction.model.functions import Function
from rooflight.prediction.model.model import Expert, Model
from rooflight.prediction.predictor import SHIPPED, SUFFIX, Predictor, files_in, write_models
from rooflight.prediction.work.facts import (
    OTHER_REDUCTIONS_KEY,
    OTHERS_KEY,
    Integers,
    WorkKind,
    is_plain,
    key_of_others,
    kind_of,
)
from rooflight.records.files import alone, write_whole

SHIPPED_NAME: Final = "shipped"
ENOUGH: Final = 200
"""Rows from which an expert of the device's own may do better than what is added to the others."""
_MOST_OTHERS: Final = 300  # rows of all plain kinds together


def base_of(name: str) -> Path:
    """The folder of the models that ``--on`` names. Raises ValueError for one without models."""
    root = SHIPPED if name == SHIPPED_NAME else Path(name)
    if not any(root.glob(f"*{SUFFIX}")):
        raise ValueError(f"--on {name} holds no models: give shipped, or a folder that rooflight fit wrote")
    return root


def learn_on(
    base: Predictor, shown: Iterable[Shown], progress: Progress = lambda _: None, *, processes: bool = False
) -> Fit:
    """What rows teach on top of models. Kinds that the base does not know are learned from these rows alone if they are
    enough, otherwise, but for products, on top of what the base answers of other ops, to which all kinds without
    products teach what they have in common. ``processes`` as ``fitting.read_for_fit``. Of the fit, ``models`` are those
    that rows changed or made.
    """
    whole = together(shown)
    launches = {name: launch_inside_s(each) for name, each in by_device(whole).items()}
    known = [each for each in whole if base.model(each.key) is not None]
    large = [each for each in known if len(each) >= ENOUGH and not _others_rest_on(base, each)]
    with workers(sum(map(len, large)), processes) as run:
        experts = {
            each.place: expert for expert, each in with_reached(list(zip(run(teach, large), large, strict=True)))
        }
    models: dict[str, Model] = {}
    added: list[Added] = []
    for number, each in enumerate(known):
        progress(f"learned {number} of {len(known)}: {each.label}")
        model = models.get(each.key) or base.model(each.key)
        assert model is not None
        launch_s = 0.0 if kind_of(each.key) is WorkKind.NETWORK else launches[each.device.name]
        refinement = refine(model, each, launch_s=launch_s)
        expert = experts.get(each.place)
        if expert is not None and expert.error < refinement.error:
            expert = replace(expert, launch_s=launch_s)
            models[each.key] = _with_expert(model, expert)
        else:
            bare, expert = unrefined(model, refinement.device), None
            models[each.key] = replace(bare, refinements=(*bare.refinements, refinement))
        added.append(Added.of(each.key, refinement, expert))
    unknown = [each for each in whole if base.model(each.key) is None]
    few = [each for each in unknown if len(each) < LEAST_ROWS and is_plain(each.key, each.facts)]
    for key in (OTHERS_KEY, OTHER_REDUCTIONS_KEY):
        general = base.model(key)
        if general is not None:
            alike, mine = ([each for each in rows if _general_key(base, each.key) == key] for rows in (whole, few))
            general, others = _of_others(general, alike, mine, launches)
            models |= {key: general} if others else {}
            added += others
            unknown = [each for each in unknown if each not in mine]
    fresh = learn_all(unknown, progress, processes=processes)
    models.update({model.key: model for model in fresh.models if base.model(model.key) is None})
    return replace(fresh, models=tuple(models.values()), added=tuple(added))


def _general_key(base: Predictor, key: str) -> str:
    found = key_of_others(key)
    return found if base.model(found) is not None else OTHERS_KEY


def _of_others(
    model: Model, whole: Sequence[Shown], few: Sequence[Shown], launches: Mapping[str, float]
) -> tuple[Model, list[Added]]:
    added: list[Added] = []
    general: dict[str, Refinement] = {}
    for each, groups in [*_plain(model.key, whole), *((each, None) for each in few)]:
        name = each.device.name
        refinement = refine(unrefined(model, name), each, groups=groups, launch_s=launches[name])
        if not refinement.kind:
            general[name] = refinement
        elif name in general and (refinement.rows < FEWEST or refinement.error >= general[name].error):
            continue  # all kinds together know better, these rows among them
        others = [one for one in model.refinements if (one.device, one.kind) != (refinement.device, refinement.kind)]
        model = replace(model, refinements=(*others, refinement))
        added.append(Added.of(each.key, refinement))
    return model, added


def _plain(key: str, whole: Iterable[Shown]) -> Iterator[tuple[Shown, Integers]]:
    for kinds in by_device(each for each in whole if is_plain(each.key, each.facts)).values():
        if len(kinds) > 1:  # one kind says nothing of how far off others are
            some = [kind.sample(max(1, _MOST_OTHERS // len(kinds))) for kind in kinds]
            yield joined(some, key), np.repeat(np.arange(len(some)), list(map(len, some)))


def _with_expert(model: Model, expert: Expert) -> Model:
    others = [each for each in model.experts if each.device != expert.device]
    experts = tuple(sorted([*others, expert], key=lambda each: each.device))
    unseen = min(model.unseen[0], expert.inside[0]), max(model.unseen[1], expert.inside[1])
    return Model(key=model.key, experts=experts, unseen=unseen, power=model.power)


def _others_rest_on(base: Predictor, shown: Shown) -> bool:
    """Whether rows of another device were learned on top of a kind's experts: with one more, these would say others."""
    model = base.model(shown.key)
    return model is not None and any(each.device != shown.device.name for each in model.refinements)


def save_on(
    base: Path,
    name: str,
    models: Sequence[Model],
    folder: Path,
    learned_from: Iterable[Path],
    functions: Sequence[Function] = (),
) -> Path:
    """Write the base's models, some of them replaced, and functions into a folder, and a manifest that lists all with
    what they were learned from. Returns the folder. Raises ValueError for a base with a file that its manifest does not
    list so.
    """
    listed = read_manifest(base) or _unlisted(base)
    contents = {path: path.read_bytes() for path in files_in(base)}
    for path, content in contents.items():
        check(listed, path, content)
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items() if base.resolve() != folder.resolve() else ():
        write_whole(folder / path.name, content)
    digests = {path.name: sha256(content).hexdigest() for path, content in contents.items()}
    whole = "".join(f"{each} {digest}\n" for each, digest in digests.items())
    on = Base(
        name=name if name == SHIPPED_NAME else Path(name).resolve().name, sha256=sha256(whole.encode()).hexdigest()
    )
    with alone(folder):
        write_manifest(folder, write_models(folder, models, functions), learned_from, on=on, inherited=listed)
    return folder


def _unlisted(base: Path) -> Manifest:
    contents = {path.name: path.read_bytes() for path in base.glob(f"*{SUFFIX}")}
    models = {
        name: Entry(key=decode(content).key, sha256=sha256(content).hexdigest(), fit=0)
        for name, content in contents.items()
    }
    return Manifest(schema=MANIFEST_SCHEMA, models=models, fits=[Source(files={}, commit="", libraries={})])
