"""Every value that is known without the device equals that of a real run on the CPU."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from small_programs import PROGRAMS

SCRIPT = Path(__file__).with_name("small_programs.py")


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """By program and name, the shape and the values as the virtual device knows them."""
    folder = tmp_path_factory.mktemp("values")
    words = [
        sys.executable,
        "-m",
        "rooflight",
        "run",
        "--on",
        "H100-SXM5-80GB",
        "--skip",
        "1000",
        str(SCRIPT),
        "known.pickle",
    ]
    run = subprocess.run(words, check=False, cwd=folder, capture_output=True, text=True, timeout=400)
    assert (folder / "known.pickle").is_file(), run.stderr
    return pickle.loads((folder / "known.pickle").read_bytes())


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_known_is_right(known, program):
    torch.manual_seed(0)
    real = PROGRAMS[program]("cpu")
    found = known[program]
    assert isinstance(found, dict), found
    assert found.keys() == real.keys()
    for name, tensor in real.items():
        shape, values = found[name]
        assert shape == (tuple(tensor.shape), tensor.stride()), name
        assert values is not None or name.endswith("?"), f"{name} is not known"
        if values is not None:
            expected = tensor.detach().resolve_conj().resolve_neg().numpy()
            assert values.dtype == expected.dtype, name
            np.testing.assert_allclose(values, expected, rtol=1e-6, err_msg=name)
