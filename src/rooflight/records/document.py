"""Document: the base of what ``--json`` writes, each kind a schema with a name and a version."""

from __future__ import annotations

import msgspec


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document: named values in SI units, None (null) where unknown."""


class Document(Fields, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="schema"):
    """The machine-readable whole of a report. A subclass gives its ``schema`` as ``tag="rooflight.NAME/VERSION"``; the
    version rises when a field is renamed, removed or changes its meaning.
    """

    @classmethod
    def schema(cls) -> str:
        """Name and version, as the key ``schema`` holds them."""
        return str(cls.__struct_config__.tag)
