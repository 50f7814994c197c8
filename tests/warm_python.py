"""Python that has imported what most commands need: each line of its input is a command, which a fork of it runs.

A line is JSON: the words after ``python`` (``-m MODULE``, ``-c CODE`` or a file, and arguments), the folder, the
variables, and the files for output and errors. The answer is the exit code. A fork behaves as a process of its own, but
for what is imported already; nothing has computed in this process, so that its threads are not missed.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path


class WarmPython:
    """The process, from outside."""

    def __init__(self, *modules: str, folder: Path) -> None:
        words = [sys.executable, "-P", __file__, *modules]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._folder = folder

    def run(self, words: list[str], folder: Path, variables: dict[str, str]) -> tuple[int, str, str]:
        """The exit code of ``python WORDS``, and what it printed."""
        files = [str(self._folder / name) for name in ("out", "err")]
        self._process.stdin.write(json.dumps([words, str(folder), variables, *files]) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return code, *(Path(file).read_text() for file in files)

    def end(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _wanted() -> list[str]:
    """In a fork, the words that it is to run; the process itself stays inside."""
    for line in sys.stdin:
        words, folder, variables, out, err = json.loads(line)
        if pid := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        for number, file in enumerate((os.devnull, out, err)):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(file, flags), number)
        sys.path[:0] = ["" if words[0] == "-c" else folder, *filter(None, variables["PYTHONPATH"].split(os.pathsep))]
        return words
    sys.exit()


def _run(first: str, *rest: str) -> None:
    sys.argv = [*rest] if first == "-m" else [first, *rest[first == "-c" :]]
    if first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        import_module(name)
    gc.freeze()
    code: object = 0
    try:
        _run(*_wanted())
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)  # to take all that was imported apart takes a second
