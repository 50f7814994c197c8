"""Archives of models: arrays by name, read no further than a model can be."""

from __future__ import annotations

import io
import zipfile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_MOST_BYTES: Final = 1 << 28


def arrays_in(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, unpacked no further than their headers allow and than a model can be."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > _MOST_BYTES:
            raise ValueError("it is larger than any model")
        # others unpack whatever they hold before anyone can stop them
        if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
            raise ValueError("its compression is unknown")
        return {member.filename.removesuffix(".npy"): _row_of_numbers(archive.read(member)) for member in members}


def _row_of_numbers(data: bytes) -> NDArray[Any]:
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of another format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "iuf" or len(shape) != 1 or shape[0] * dtype.itemsize != len(data) - file.tell():
        raise ValueError("an array whose header does not fit its data")
    return np.frombuffer(data, dtype, offset=file.tell())
