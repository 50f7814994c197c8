"""How a run of the command ends: its exit code, and one line on standard error where something went wrong."""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import typer

from rooflight.records.files import naming
from rooflight.records.package import EXTRAS, install_line
from rooflight.records.visible import visible

DONE, RUN_FAILED, USER_MISTAKE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
"""The last is what a shell shows for a program that SIGPIPE ended, as it ends ``cat`` and ``ls``: 128 + 13."""

# typer has a click of its own, and exports no other name for it
_UsageError: Final[type] = typer.BadParameter.__mro__[1]
_WRONG_PATH: Final = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; the text says what is kept. No KeyboardInterrupt, since typer drops the text of those."""


@contextmanager
def interrupted(remains: str) -> Iterator[None]:
    """If the block is interrupted, say in a few words what ``remains`` of its work."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(remains) from stop


def ended(run: Callable[[], int | None], *, debug: bool) -> int:
    """Run, print a line on standard error if that failed, and return the exit code.

    ``run`` returns its exit code; None is 0. With ``debug`` the traceback of an error comes before its line.
    """
    try:
        return _finished(run)
    except BaseException as stop:
        if isinstance(stop, BrokenPipeError) and _reader_left():
            _flush_or_discard()
            return PIPE_CLOSED
        code, text = _ending(stop)
        if debug and code != INTERRUPTED:
            traceback.print_exception(stop)
        tell(text)
        _flush_or_discard()
        return code


def tell(text: str) -> None:
    """Print one line on standard error, if it can still be written."""
    with suppress(OSError):  # the reader has left, or the disk is full: the exit code has to be enough
        print(f"rooflight: {visible(text)}", file=sys.stderr, flush=True)


def _finished(run: Callable[[], int | None]) -> int:
    try:
        code = run() or DONE
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer ends with exit code 1 after a closed pipe
            raise stop.__context__ from None
        if not isinstance(stop.code, int | None):
            raise RuntimeError(stop.code) from stop
        code = stop.code or DONE
    if code == INTERRUPTED:  # typer returns it after Ctrl-C
        raise KeyboardInterrupt
    if sys.stdout is not None:
        with naming("standard output"):
            sys.stdout.flush()  # a closed pipe or a full disk shows now, not while the interpreter ends
    return code


def _ending(stop: BaseException) -> tuple[int, str]:
    text = " ".join(str(stop).split()) or type(stop).__name__
    code = USER_MISTAKE
    if isinstance(stop, ExceptionGroup):
        codes, texts = zip(*map(_ending, stop.exceptions), strict=True)
        return min(codes), "; ".join(texts)
    if isinstance(stop, Interrupted | KeyboardInterrupt | typer.Abort):
        remains = text if isinstance(stop, Interrupted) else "nothing was left half-written"
        code, text = INTERRUPTED, f"interrupted: {remains}"
    elif isinstance(stop, _UsageError):
        text = _usage(stop)
    elif isinstance(stop, ModuleNotFoundError) and stop.name in EXTRAS:
        line = install_line([stop.name])
        text = text if line in text else f"{stop.name} is not installed: {line}"
    elif isinstance(stop, OSError) and stop.strerror:
        code = USER_MISTAKE if isinstance(stop, _WRONG_PATH) else RUN_FAILED
        text = stop.strerror if stop.filename is None else f"{os.fspath(stop.filename)}: {stop.strerror}"
    elif not isinstance(stop, ValueError | FileNotFoundError):
        code = RUN_FAILED
        if isinstance(stop, MemoryError):
            text = "out of memory"
        elif not isinstance(stop, RuntimeError | OSError):
            ours = "an error in Rooflight: please report it with the traceback, which --debug prints"
            text = f"{type(stop).__name__}: {text} ({ours})"
    return code, text


def _usage(error: BaseException) -> str:
    text = " ".join(error.format_message().split()).removesuffix(".")  # type: ignore[attr-defined]
    text = text.replace("Value error, ", "")
    named_like_options = [word for word in sys.argv[1:] if word.startswith("-") and Path(word).exists()]
    hint = f"; ./{named_like_options[0]} is the file" if named_like_options else ""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "rooflight"
    return f"{text[:1].lower()}{text[1:]}{hint} (see {command} --help)"


def _reader_left() -> bool:
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # POLLERR and POLLHUP are always reported
        return bool(poll.poll(0))
    except (AttributeError, OSError, ValueError):  # no poll, no output, or a test's, which has no number
        return True


def _flush_or_discard() -> None:
    """Flush standard output; discard what cannot be written, because the interpreter would fail over it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except AttributeError:  # there is no standard output
        return
