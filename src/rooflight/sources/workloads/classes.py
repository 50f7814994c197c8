"""Kinds of models, and which class of transformers a config names. Nothing is built."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from rooflight.sources.workloads.errors import TargetError, need_transformers, no_inputs_for

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


StepName = Literal["forward", "train", "prefill", "decode"]
STEPS: Final[tuple[StepName, ...]] = ("forward", "train", "prefill", "decode")

ModelKind = str
"""A key of KINDS, such as ``causal-lm``."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of model. ``mappings`` are transformers' lists of its classes, ``suffixes`` how their names end;
    ``reads_values``: steps in which sizes depend on the values of tensors, so that on meta they differ.
    """

    mappings: tuple[str, ...]
    suffixes: tuple[str, ...] = ()
    steps: tuple[StepName, ...] = ("forward", "train")
    reads_values: tuple[StepName, ...] = ()


KINDS: Final = msgspec.convert(
    tomllib.loads((Path(__file__).parent / "data" / "kinds.toml").read_text(encoding="utf-8")), dict[ModelKind, Kind]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenClass:
    """The class that a config is built as. ``note`` gives the reason if the config names another class."""

    model_class: Any
    kind: ModelKind
    note: str = ""

    @property
    def name(self) -> str:
        """The name of the class."""
        return str(self.model_class.__name__)

    @property
    def accepted(self) -> frozenset[str]:
        """The arguments of its forward."""
        return frozenset(inspect.signature(self.model_class.forward).parameters)

    @property
    def main_input(self) -> str:
        """The argument that takes its main input: ``input_ids``, ``pixel_values``, ``input_values`` or others."""
        named = str(self.model_class.main_input_name)
        known = (named, "input_ids", "pixel_values", "input_values", "input_features")
        return next((name for name in known if name in self.accepted), named)


def class_of(config: PreTrainedConfig, kind: ModelKind | None = None) -> ChosenClass:
    """The class to build: the first of the config's ``architectures``. If the config has none, or transformers has no
    such class for it, the auto class of its type and of the given kind. Raises TargetError if transformers has no class
    for the config, if no inputs are known for the class, or if it needs a library that is missing.
    """
    named = _named(config)
    found = getattr(need_transformers(), named, None) if named else None
    if not named:
        why, by = "The config names no architecture", ", a class of its model_type"
    elif not _is_model(found):
        why, by = f"transformers has no class {named}, which the config names", ", by its model_type"
    else:
        _require_libraries(found)
        if _takes(found, config):
            return ChosenClass(model_class=found, kind=_kind_of_class(found, config))
        why, by = f"The config names {named}, which is no class for model_type {config.model_type}", ""
    chosen = _auto_class(config, kind)
    is_preset = not named and kind is not None  # its class is known
    return chosen if is_preset else replace(chosen, note=f"{why}: built {chosen.name}{by}.")


def _named(config: PreTrainedConfig) -> str:
    names = config.architectures
    listed = [names] if isinstance(names, str) else names if isinstance(names, list) else []
    return next((name for name in listed if isinstance(name, str)), "")


def _auto_class(config: PreTrainedConfig, kind: ModelKind | None) -> ChosenClass:
    for each in KINDS if kind is None else (kind,):
        for found in _mapped(config, each):
            _require_libraries(found)
            return ChosenClass(model_class=found, kind=each)
    wanted = "" if kind is None else f" {kind}"
    raise TargetError(f'transformers has no{wanted} model for model_type "{config.model_type}"')


def _kind_of_class(model_class: Any, config: PreTrainedConfig) -> ModelKind:
    for kind, known in KINDS.items():
        if model_class in _mapped(config, kind) or model_class.__name__.endswith(known.suffixes):
            return kind
    raise no_inputs_for(model_class.__name__)


def _mapped(config: PreTrainedConfig, kind: ModelKind) -> Iterator[Any]:
    for name in KINDS[kind].mappings:
        mapping: Any = getattr(getattr(need_transformers(), name, None), "_model_mapping", {})
        if type(config) in mapping:
            try:
                found = mapping[type(config)]
            except ValueError:  # a list may hold a class that transformers no longer has
                continue
            yield from found if isinstance(found, (tuple, list)) else (found,)


def _is_model(found: Any) -> bool:
    from transformers import PreTrainedModel

    return isinstance(found, type) and (_missing_libraries(found) != [] or issubclass(found, PreTrainedModel))


def _missing_libraries(model_class: Any) -> list[str]:
    """The missing libraries of a class, for which transformers has only a stand-in because of that."""
    is_stand_in = type(model_class).__name__ == "DummyObject"  # any public attribute of one raises ImportError
    return list(model_class._backends) if is_stand_in else []


def _require_libraries(model_class: Any) -> None:
    if missing := _missing_libraries(model_class):
        raise TargetError(f"{model_class.__name__} needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def _takes(model_class: Any, config: PreTrainedConfig) -> bool:
    wanted = model_class.config_class
    return not isinstance(wanted, type) or isinstance(config, wanted)
