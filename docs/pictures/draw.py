"""Draw the README's picture, a real report as the terminal shows it: python docs/pictures/draw.py TARGET OUT.svg."""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rooflight.front.targets import RunOptions, analyze_target
from rooflight.reporting.console import print_report
from rooflight.roofline.tables.report import report_of


def main(target: str, out: str) -> None:
    """Analyse a training step of ``target`` on this machine and draw the report."""
    analysis, notes = analyze_target(target, RunOptions(step="train"))
    terminal = Console(width=118, file=StringIO(), force_terminal=True, color_system="truecolor")
    print_report(report_of(analysis, top=6, notes=notes), terminal)
    recorder = Console(record=True, width=118, file=StringIO())
    recorder.print(Text.from_ansi(terminal.file.getvalue()))  # type: ignore[attr-defined]
    picture = recorder.export_svg(title=f"rooflight analyze {target} --step train")
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # a picture should fetch nothing
    Path(out).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
