"""Parsed options back to the command line that gives them, for processes that run a part of a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typer import Context


def arguments_of(context: Context, **changed: Any) -> list[str]:
    """Words that the context's command parses to the context's parameters, except for those ``changed``, by name.

    What is at its default is left out. Raises KeyError for a parameter that the command does not have.
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
