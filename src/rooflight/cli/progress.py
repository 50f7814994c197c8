"""Shows on standard error what a verb is doing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflight.reporting.output import Outputs


@contextmanager
def running(outputs: Outputs, *, redraws: bool = True) -> Iterator[Callable[[str], None]]:
    """``spinner`` while a program runs whose output must not get into a report on standard output, which another
    program reads.
    """
    aside = redirect_stdout(sys.stderr) if outputs.to_stdout else nullcontext()
    with spinner(redraws=redraws) as progress, aside:
        yield progress


@contextmanager
def spinner(*, redraws: bool = True) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done: on a terminal with a spinner; in a pipe or on a dumb terminal
    only that the machine is calibrated, in a line, as in Python. Without ``redraws`` the spinner turns only when the
    function is called: no thread draws while something is timed.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb").lower() in ("dumb", "unknown"):
        from rooflight.front.device import log_progress

        yield log_progress
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    from rooflight.records.visible import visible

    console = Console(stderr=True)
    drawn = Spinner("dots", "starting", style="status.spinner")
    # What is printed meanwhile goes above the spinner, but only on a terminal: a pipe must get what is printed.
    to_terminal = sys.stdout is not None and sys.stdout.isatty()
    with Live(drawn, console=console, transient=True, auto_refresh=redraws, refresh_per_second=12.5,
              redirect_stdout=to_terminal) as live:  # fmt: skip

        def say(text: str) -> None:
            drawn.update(text=Text(f"{visible(text)} …"))  # Text: a name in brackets is no markup
            if not redraws:
                live.refresh()

        yield say
