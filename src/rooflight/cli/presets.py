"""``rooflight presets``: the public architectures that can be analysed by name."""

from __future__ import annotations

from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render


def presets(
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
) -> None:
    """List the public architectures that rooflight analyze takes by name: kind, parameters, default batch and
    sequence, and where their shapes are published.

    \b
      rooflight presets
      rooflight presets --json -
      rooflight analyze gpt2
    """
    from rooflight.reporting.output import Outputs
    from rooflight.workloads.presets import PRESETS, report_of

    Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render).write(report_of(PRESETS.values()))
