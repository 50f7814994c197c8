"""The presets by name. Listing them needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from rooflight.workloads import catalog_language, catalog_other
from rooflight.workloads.errors import TargetError
from rooflight.workloads.preset import Preset


def by_name(presets: Iterable[Preset]) -> dict[str, Preset]:
    """Presets keyed by name. Raises ValueError when two share one."""
    known: dict[str, Preset] = {}
    for preset in presets:
        if preset.name in known:
            raise ValueError(f'two presets are called "{preset.name}"')
        known[preset.name] = preset
    return known


PRESETS: Final[dict[str, Preset]] = by_name((*catalog_language.PRESETS, *catalog_other.PRESETS))


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
