"""The file of what measured programs correct of a predicted gain."""

import io
import json
from hashlib import sha256
from math import exp, log

import numpy as np
import pytest

from rooflight.prediction.gain import correction as gain_correction
from rooflight.prediction.gain.correction import FILE, FOLDER, NAMES, Correction, decode, learn, shipped
from rooflight.prediction.gain.walls import MODES

INTERVALS = dict.fromkeys(MODES, (-0.1, 0.2))


def changed(content: bytes, **about) -> bytes:
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    told = json.loads(arrays["about"].tobytes()) | about
    buffer = io.BytesIO()
    arrays["about"] = np.frombuffer(json.dumps(told).encode(), dtype=np.uint8)
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def content() -> bytes:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, len(NAMES)))
    return Correction(trees=learn(features, np.where(features[:, 0] > 0, 0.5, -0.5)), intervals=INTERVALS).encode()


def test_a_correction_comes_back_as_it_was_kept(content):
    found = decode(content)
    asked = np.zeros(len(NAMES))
    asked[0] = 2.0
    best, low, high = found.of(asked, "default")
    assert best == pytest.approx(exp(0.5), rel=0.05)
    assert (low, high) == (pytest.approx(best * exp(-0.1)), pytest.approx(best * exp(0.2)))
    assert decode(found.encode()).of(asked, "cudagraphs") == (best, low, high)


def test_no_correction_is_beyond_reason():
    features = np.zeros((100, len(NAMES)))
    found = Correction(trees=learn(features, np.full(100, 9.0)), intervals=INTERVALS)
    assert log(found.of(features[0], "default")[0]) == 3.0


@pytest.mark.parametrize(
    "about",
    [
        {"schema": "rooflight.gain/0"},
        {"features": list(NAMES[:-1])},
        {"features": ["other", *NAMES[1:]]},
        {"intervals": {"default": [-1, 1]}},
        {"intervals": dict.fromkeys(MODES, (0.1, 0.2))},
        {"intervals": dict.fromkeys(MODES, (-0.1, "wide"))},
        {"more": 1},
    ],
)
def test_what_is_no_correction_is_refused(content, about):
    with pytest.raises(ValueError, match="install Rooflight again"):
        decode(changed(content, **about))


@pytest.mark.parametrize("damage", [b"", b"PK", b"\x80\x04N."])
def test_damaged_bytes_are_refused(damage):
    with pytest.raises(ValueError, match="no corrections of predicted gains"):
        decode(damage)


def test_trees_that_are_cut_are_refused(content):
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files if not name.endswith("leaves")}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    with pytest.raises(ValueError, match="leaves"):
        decode(buffer.getvalue())


def test_the_shipped_one_is_the_one_that_the_manifest_lists(tmp_path, monkeypatch):
    listed = json.loads((FOLDER / "manifest.json").read_text())["models"][FILE]["sha256"]
    given = (FOLDER / FILE).read_bytes()
    assert sha256(given).hexdigest() == listed
    assert len(given) < 32_000
    monkeypatch.setattr(gain_correction, "FOLDER", tmp_path)
    shipped.cache_clear()
    try:
        with pytest.raises(ValueError, match="install Rooflight again"):
            shipped()
        (tmp_path / "manifest.json").write_bytes((FOLDER / "manifest.json").read_bytes())
        (tmp_path / FILE).write_bytes(Correction(trees=decode(given).trees, intervals=INTERVALS).encode())
        with pytest.raises(ValueError, match="is not the file that manifest"):
            shipped()
    finally:
        shipped.cache_clear()
