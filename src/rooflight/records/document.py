"""Document: the base of what ``--json`` writes, each kind a schema with a name and a version."""

from __future__ import annotations

from typing import Any, Self

import msgspec


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document: named values in SI units, None (null) where unknown.

    A noun that has more than a document shows is a subclass with further fields: ``view`` leaves them out.
    """

    @classmethod
    def view(cls, *values: object, **others: object) -> Self:
        """Each field as ``others`` give it, or as the attribute of that name of the first of ``values`` that has one;
        so in all that is inside.
        """
        read: dict[str, object] = {}
        for value in reversed(values):
            read |= {name: getattr(value, name) for name in cls.__struct_fields__ if hasattr(value, name)}
        read |= others
        named = zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
        return msgspec.convert({key: read[name] for name, key in named if name in read}, cls, from_attributes=True)


class Document(Fields, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="schema"):
    """A whole report in machine-readable form. A subclass gives its ``schema`` as ``tag="rooflight.NAME/VERSION"``; the
    version rises when a field is renamed, removed or changes its meaning.
    """

    @classmethod
    def schema(cls) -> str:
        """Name and version, as the key ``schema`` holds them."""
        return str(cls.__struct_config__.tag)


def encoded(value: msgspec.Struct | tuple[msgspec.Struct, ...]) -> bytes:
    r"""A struct as JSON, or several as a list. A file's name may have bytes that are not UTF-8. Python keeps them as
    halves of surrogate pairs, which JSON cannot have, so they are written as escapes (``\udcff``).
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list | tuple) else value
