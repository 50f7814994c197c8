"""The version of Rooflight that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("rooflight")
    except PackageNotFoundError:  # imported from a folder of sources
        return "0+unknown"


__version__ = _installed()
