"""The presets, public architectures by name, and the report that lists them. Needs neither torch nor transformers."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rooflight.records.document import Document, Fields
from rooflight.records.report import Report, table
from rooflight.sources.workloads.classes import KINDS, ModelKind
from rooflight.sources.workloads.errors import TargetError, need_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_DATA: Final = Path(__file__).parent / "data"
_DEFAULTS: Final[Mapping[str, Any]] = {"batch": 1, "seq": 256, "shapes": {}, "reduced": {}}


class PresetData(Fields, frozen=True, kw_only=True):
    """A public architecture by name. ``parameters`` count tied embeddings once; ``seq`` is null where an input has no
    length to choose; ``source`` is where its shapes are published.
    """

    name: str
    description: str
    kind: str
    model_type: str
    parameters: int
    batch: int
    seq: int | None
    steps: tuple[str, ...]
    source: str


class Preset(PresetData, frozen=True, kw_only=True):
    """A public architecture: its ``shapes``, without its weights and its training recipe. Dropout is off. ``reduced``
    is what a small one changes.
    """

    kind: ModelKind
    shapes: dict[str, Any]
    reduced: dict[str, Any]

    def config(self) -> PreTrainedConfig:
        """The full-size transformers config."""
        return self._config(self.shapes)

    def small(self) -> PreTrainedConfig:
        """The same architecture, few layers and narrow: a step takes about a second on a CPU."""
        return self._config({**self.shapes, **self.reduced})

    def _config(self, values: Mapping[str, Any]) -> PreTrainedConfig:
        # a config keeps the dicts and lists it is given and edits some of them
        config: PreTrainedConfig = need_transformers().AutoConfig.for_model(self.model_type, **copy.deepcopy(values))
        return config


def load_presets(*files: Path) -> dict[str, Preset]:
    """The presets of TOML files by name, in order. A table with ``like`` has the values of that preset of its file
    where it gives none.

    Raises ValueError when two share a name, and for a table that is no preset.
    """
    known: dict[str, Preset] = {}
    for file in files:
        tables: dict[str, dict[str, Any]] = {}
        for name, own in tomllib.loads(file.read_text(encoding="utf-8")).items():
            if name in known:
                raise ValueError(f'two presets are called "{name}"')
            base = dict(tables.get(own.pop("like", ""), _DEFAULTS))
            found = base | own | {part: base[part] | own.get(part, {}) for part in ("shapes", "reduced")}
            tables[name] = found
            named: dict[str, Any] = {"name": name, "steps": KINDS[found["kind"]].steps}
            named |= {"seq": None} if found["kind"] == "image-classification" else {}
            known[name] = msgspec.convert(found | named, Preset)
    return known


PRESETS: Final = load_presets(_DATA / "decoders.toml", _DATA / "others.toml")


def preset(name: str) -> Preset:
    """The preset of that name. If there is none, raises TargetError with the names that are similar, or all."""
    found = PRESETS.get(name.lower())
    if found is None:
        raise TargetError(f'unknown preset "{name}": {suggestion(name)}')
    return found


def suggestion(name: str) -> str:
    """``did you mean gpt2, gpt2-xl?`` or, when nothing is close, the whole list."""
    close = get_close_matches(name.lower(), PRESETS, n=3, cutoff=0.5)
    close += [known for known in PRESETS if name.lower() in known and known not in close] if name else []
    return f"did you mean {', '.join(close)}?" if close else f"known presets: {', '.join(PRESETS)}"


class PresetsDocument(Document, frozen=True, kw_only=True, tag="rooflight.presets/1"):
    """The presets that ``rooflight analyze`` takes."""

    presets: tuple[PresetData, ...]


def report_of(presets: Iterable[Preset]) -> Report:
    """One row per preset."""
    found = tuple(presets)
    listed = table(
        "presets",
        "Public architectures, with random weights",
        found,
        ("preset", "", lambda preset: preset.name),
        ("kind", "", lambda preset: preset.kind),
        ("parameters", "", lambda preset: preset.parameters),
        ("batch", "", lambda preset: preset.batch),
        ("seq", "", lambda preset: preset.seq),
        ("shapes from", "", lambda preset: _short(preset.source)),
        wraps=("shapes from",),
        optional=("kind", "batch", "seq"),
        note="Batch and seq are defaults. Analyze one: rooflight analyze NAME; --small takes a reduced size.",
    )
    return Report(title="Presets", data=PresetsDocument.view(presets=found), tables=(listed,))


def _short(source: str) -> str:
    return source.removeprefix("https://").replace("/blob/main/config.json", "")
