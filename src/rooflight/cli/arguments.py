"""Checks of a command line's words, and options as words again, for processes that run a part of a command."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typer import Context


def arguments_of(context: Context, **changed: Any) -> list[str]:
    """Words that the context's command parses to the context's parameters, except for those ``changed``, by name.

    Parameters at their defaults are left out. Raises KeyError for a parameter that the command does not have.
    """
    given: Mapping[str, Any] = context.params
    if unknown := changed.keys() - given.keys():
        raise KeyError(f"{context.info_name} has no parameter {', '.join(sorted(unknown))}")
    values = {**given, **changed}
    options: list[str] = []
    positional: list[str] = []
    for parameter in context.command.params:
        value = values[str(parameter.name)]
        if value in (None, parameter.default) or value == []:
            continue
        if parameter.param_type_name == "argument":
            positional += _texts(value)
        elif isinstance(value, bool):
            options.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            for text in _texts(value):
                options += [parameter.opts[0], text]
    return [*positional, *options]


def _texts(value: Any) -> Iterator[str]:
    yield from (str(each) for each in (value if isinstance(value, list | tuple) else [value]))


def refuse_empty(words: Sequence[str]) -> None:
    """Raise ValueError for an empty word, or an option with an empty value: an empty path would mean this folder."""
    for before, word in zip(("", *words), words, strict=False):
        name, equals, value = word.partition("=")
        if not word or (equals and not value and name.startswith("--")):
            where = name or (before if before.startswith("-") else "an argument")
            raise ValueError(f"{where} is empty: was a variable of the shell not set?")


def refuse_unused(context: Context, used: Collection[str], why: str) -> None:
    """Raise ValueError for an option on the command line whose parameter is not in ``used``. The message gives the
    reason ``why``.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in used:
            raise ValueError(f"{parameter.opts[0]}: {why}")


def check_folder(option: str, folder: Path) -> None:
    """Raise ValueError now, rather than after minutes of measuring, if ``folder`` cannot be made or written to."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        where = "" if there == folder else f": {there}"
        raise ValueError(f"{option} {folder}{where} is a file: name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{option} {folder}: {there} cannot be written to, no permission")
