"""Options of verbs: made from the classes that declare them, refused where they have no effect, and words again."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from rooflight.cli import completion
from rooflight.records.options import Option

if TYPE_CHECKING:
    from rooflight.reporting.output import Outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a report goes."""

    panel: ClassVar = "Output"
    json: Annotated[str | None, Option("Write JSON to this file, - for standard output.", "FILE")] = None
    markdown: Annotated[str | None, Option("Write Markdown to this file, - for standard output.", "FILE")] = None
    csv: Annotated[str | None, Option("Write each table as CSV to this folder, - for standard output.", "FOLDER")] = (
        None
    )
    html: Annotated[str | None, Option("Write HTML to this file, - for standard output.", "FILE")] = None
    render: Annotated[
        tuple[str, ...],
        Option("Write to FILE with a renderer of yours: my_format.py:render=report.txt.", "RENDERER=FILE"),
    ] = ()
    reads: tuple[Path, ...] = ()  # files that other words of the command line name

    def open(self, **others: Path | None) -> Outputs:
        """Check now what will be written. ``others`` are the verb's own files, by option. Raises ValueError."""
        from rooflight.reporting.output import Outputs

        given = {name: getattr(self, name) for name in OUTPUTS}
        return Outputs(**given, others={f"--{name}": file for name, file in others.items()}, reads=list(self.reads))


OUTPUTS = frozenset(field.name for field in fields(Output)) - {"reads"}
"""Parameters of a verb that say where its report goes."""
_WRITTEN: Final = OUTPUTS - {"render"} | {"save", "out", "output_dir"}
"""Parameters whose words name what is written. A renderer is read, until the ``=``."""


class Command(TyperCommand):
    """A verb whose help has a section for each panel."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does; who names the step by ``--mode``, which is torch.compile's, is shown ``--step``."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer exports no name for click's error of an unknown option
            if getattr(error, "option_name", "") == "--mode" and any("--step" in each.opts for each in self.params):
                error.possibilities = ["--step"]  # type: ignore[attr-defined]
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments first, panels in the order of the verb's parameters, ``--help`` last."""
        panels: dict[str, list[tuple[str, str]]] = {}
        title = "Options"
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                title = "Arguments"
            elif parameter in self.params:  # not --help, which is the last of the last panel
                title = getattr(parameter, "rich_help_panel", None) or "Options"
            if (record := parameter.get_help_record(ctx)) is not None:
                panels.setdefault(title, []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as typer takes it: a parameter whose class declares options becomes those options."""
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return")
    classes = {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}
    own = hints.keys() - classes.keys()
    parameters: list[Parameter] = []
    for name, parameter in signature(function).parameters.items():
        found = _parameters(classes[name]) if name in classes else [parameter.replace(annotation=hints[name])]
        parameters += [each.replace(kind=Parameter.KEYWORD_ONLY) for each in found]

    @functools.wraps(function)
    def run(**words: Any) -> Any:
        reads = tuple(_files_in(word for name, word in words.items() if name not in _WRITTEN))
        made = {name: _made(kind, words) for name, kind in classes.items()}
        made |= {name: replace(each, reads=reads) for name, each in made.items() if isinstance(each, Output)}
        return function(**made, **{name: word for name, word in words.items() if name in own})

    run.__dict__.pop("__wrapped__")  # typer would read the function's own parameters
    run.__dict__["__signature__"] = Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


@functools.cache  # most verbs share a class or two
def _parameters(kind: type) -> list[Parameter]:
    found = []
    defaults = {field.name: field.default for field in fields(kind)}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if get_origin(hint) is Annotated:
            type_, option = get_args(hint)
            repeats, default = get_origin(type_) is tuple, defaults[name]
            info = typer.Option(
                *(option.flags or (f"--{name.replace('_', '-')}",)),
                metavar=option.metavar,
                help=option.help,
                min=option.least,
                autocompletion=getattr(completion, option.names) if option.names else None,
                show_default="[default" not in option.help,
                rich_help_panel=kind.__dict__.get("panel") or getattr(kind, "panel", None),
            )
            annotation: Any = Annotated[list[str] | None if repeats else type_, info]
            default = None if repeats else default
            found.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    return found


def _made(kind: type, words: Mapping[str, Any]) -> object:
    """An object of an options class; what is repeatable and was not given has the default of the class."""
    given = {each.name: words[each.name] for each in _parameters(kind)}
    lists = {name: tuple(word) for name, word in given.items() if isinstance(word, list)}
    unset = {field.name for field in fields(kind) if isinstance(field.default, tuple)} - lists.keys()
    return kind(**{name: word for name, word in (given | lists).items() if name not in unset})


def _files_in(words: Iterable[Any]) -> Iterator[Path]:
    """The files that words name: ``a.session``, ``train.py:make_step``, ``my.py:render=out.txt``."""
    for text in {text for word in words if isinstance(word, str | Path | list) for text in _texts(word)}:
        ends = [place for place, letter in enumerate(text) if letter in ":="]
        with suppress(ValueError, OSError):  # names that no file can have
            yield from (path for end in (*ends, len(text)) if (path := Path(text[:end])).is_file())


def arguments_of(context: typer.Context, **changed: Any) -> list[str]:
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


def refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Raise ValueError, with the reason ``why``, if one of these parameters is on the command line."""
    for parameter in context.command.params:
        if parameter.name in names and on_command_line(context, parameter.name):
            raise ValueError(f"{parameter.opts[0]}: {why}")


def refuse_elsewhere(context: typer.Context, executor: str) -> None:
    """Raise ValueError for options of other executors than the one that was chosen."""
    for kind, names in {"slurm": ("nodes", "partition", "submit"), "ray": ("address",)}.items():
        if executor != kind:
            refuse(context, names, f"for --executor {kind}")


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


SourceDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        autocompletion=completion.devices,
        help="Device of traces and sessions that do not name a known one (see: rooflight devices).",
    ),
]
"""The device of verbs that read sessions and traces as measured data."""


def on_command_line(context: typer.Context, name: str) -> bool:
    """Whether a parameter was given, rather than left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
