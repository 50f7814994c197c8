"""Files of devices that are the test's own: none of the machine's is put at risk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


def device(path: Path, major: int, minor: int) -> Path:
    """A character device. Needs root: the test is skipped without."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("only root makes devices")
    return path
