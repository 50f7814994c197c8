"""The ``rooflight`` command: its verbs, and how it ends after an error."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path

import typer

from rooflight.cli.analyze import analyze
from rooflight.cli.calibrate import calibrate
from rooflight.cli.catalogs import devices_app, presets
from rooflight.cli.compile_bench import compile_bench
from rooflight.cli.diagnose import diagnose
from rooflight.cli.endings import ended
from rooflight.cli.explain import explain
from rooflight.cli.launch import Launch
from rooflight.cli.options import Command, refuse_empty, verb
from rooflight.cli.predict import predict
from rooflight.cli.profile_decode import profile_decode
from rooflight.cli.run import run
from rooflight.cli.run_on import LaunchOn
from rooflight.cli.sample import merge, sample
from rooflight.cli.score import score
from rooflight.cli.tables import fit, lint
from rooflight.records.visible import visible
from rooflight.reporting.encoding import ERRORS

app = typer.Typer(
    name="rooflight",
    help="How far a PyTorch program is from the speed of light, why, and what to do about it.",
    epilog="Begin with: rooflight analyze gpt2. Each command has examples: rooflight analyze --help. NO_COLOR=1 turns"
    " colors off.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
_VERBS = (
    ("run", run, "Run a script as it is, and report its step."),
    ("analyze", analyze, "Say how far a step is from the speed of light, and why."),
    ("diagnose", diagnose, "Say what costs a step time, what helps, and what that gains."),
    ("score", score, "Check and time a kernel beside its bounds."),
    ("compile-bench", compile_bench, "Say whether torch.compile pays, and from which iteration on."),
    ("explain", explain, "Show what torch.compile makes of a function, and why."),
    ("profile-decode", profile_decode, "Say where the time of decode steps goes."),
    ("calibrate", calibrate, "Measure this machine's peaks, bandwidths and latency."),
    ("sample", sample, "Time operators over sweeps of shapes."),
    ("merge", merge, "Put the parts of a sweep together."),
    ("lint", lint, "Find rows of measured tables that cannot be true."),
    ("fit", fit, "Learn from measured tables how long operators take."),
    ("predict", predict, "Predict how long an operator takes on a device."),
    ("presets", presets, "List the models that analyze takes by name."),
)
_SHAPE = {"ignore_unknown_options": True, "allow_extra_args": True}  # of predict: --m 4096
_SCRIPT = {"allow_interspersed_args": False}  # of run: what follows the script is the script's
for _name, _function, _summary in _VERBS:
    _settings = _SHAPE if _function is predict else _SCRIPT if _function is run else {}
    app.command(_name, cls=Command, short_help=_summary, context_settings=_settings)(verb(_function))
app.add_typer(devices_app, name="devices", short_help="List the known devices, or show every figure of one.")


@app.callback()
def _options(
    context: typer.Context,
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),  # noqa: ARG001 - see main
    version: bool = typer.Option(False, "--version", help="Print the versions of Rooflight, Python and torch."),
) -> None:
    if version:
        typer.echo(_versions())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line. Exit code 0, 2 for the user's mistake, 1 for a run that failed, 130 for Ctrl-C, 141 if the
    reader of a pipe left.
    """
    words = sys.argv[1:]
    launched: list[Launch | LaunchOn] = []
    if "run" in words and all(word.startswith("-") for word in words[: words.index("run")]):
        own = words[: words.index("run")]
        code = ended(lambda: _run(own, launched), debug="--debug" in own)
        for launch in launched:
            launch.start()
        sys.exit(code)
    if sys.stderr is None:  # closed by the caller; print would write to standard output instead
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for the rest of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # and neither closed nor replaced by a test
            stream.reconfigure(errors=ERRORS)
    warnings.formatwarning = format_warning
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # or Python looks through all of torch's objects, for half a second, as it ends
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or torch's profiler writes its own marks to standard error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # schedulers stop a job with it: end as after Ctrl-C
    debug = "--debug" in sys.argv  # at any place in the command line
    sys.argv = [word for word in sys.argv if word != "--debug"]
    sys.exit(ended(lambda: _run(sys.argv[1:], launched), debug=debug))


def _run(own: list[str], launched: list[Launch | LaunchOn]) -> int | None:
    """Run a verb. What follows ``rooflight run`` is the script's, and only the verb's ``own`` words are looked at."""
    refuse_empty(own)
    found: Launch | LaunchOn | int | None = app(prog_name="rooflight", standalone_mode=False)  # also under python -m
    if isinstance(found, Launch | LaunchOn):
        launched.append(found)
        return None
    return found


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of
    from platform import python_version

    from rooflight.records.package import installed_version

    found = [f"Python {python_version()}"]
    for package in ("torch", "transformers"):
        try:
            found.append(f"{package} {version_of(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return f"rooflight {installed_version()} ({', '.join(found)})"


_format_others = warnings.formatwarning


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Rooflight's own warnings in one line, without a place in the code. They are known by the name of their module,
    since importing their class takes time.
    """
    if category.__module__.partition(".")[0] == "rooflight":
        return f"rooflight: {visible(str(message))}\n"
    return _format_others(message, category, filename, lineno, line)
