"""Files of models and their manifests: what is written is read, and anything else is refused."""

from __future__ import annotations

import io
import json
import pickle
import re
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_models import (
    A100,
    H100,
    LARGEST_LOG_S,
    expert,
    model,
    packed,
    products,
    shown,
    small_model,
    unpacked,
    with_member,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.devices import get
from rooflight.prediction.fit.experts import learn
from rooflight.prediction.model.files import NAME, decode, encode, read_manifest
from rooflight.prediction.model.model import Model
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.facts import PRODUCT_KEY
from rooflight.prediction.work.floors import FASTEST

WORK = np.concatenate([products(20), products(20, seed=3, largest=1 << 17)])
DEVICES = (A100, H100, get("MI300X"))
GOOD = encode(small_model())
ABOUT, ARRAYS = unpacked(GOOD)
REFUSED = r"^[^\n]+: fit it again$"


def answers(found: Model) -> np.ndarray:
    """All that a model says of work inside, outside and on devices that it was never shown."""
    each = [found.answer(WORK, device) for device in DEVICES]
    return np.array([[answer.slowdown, answer.low, answer.high, answer.known] for answer in each])


def check_answers(found: Model) -> None:
    slowdown, low, high, _ = np.moveaxis(answers(found), 1, 0)
    assert np.isfinite([slowdown, low, high]).all()
    assert np.isfinite(np.exp(high)).all()
    assert ((low >= FASTEST) & (low <= slowdown) & (slowdown >= 0) & (slowdown <= high)).all()
    assert np.isfinite([found.error, found.rows]).all()


def check_file(content: bytes) -> None:
    """Of what was changed at random: refused, or it still predicts."""
    try:
        found = decode(content)
    except ValueError as error:
        said = str(error)
    else:
        return check_answers(found)
    assert re.match(REFUSED, said)
    return None


@pytest.mark.parametrize("make", [small_model, lambda: learn([shown(0.5), shown(np.linspace(0, 3, 60), device=H100)])])
def test_what_is_written_is_what_is_read(make: Callable[[], Model]):
    written = make()
    content = encode(written)
    found = decode(content)
    assert np.array_equal(answers(found), answers(written))
    assert encode(found) == content == encode(written)
    figures = attrgetter("key", "unseen", "rows", "error")
    assert figures(found) == figures(written)
    figures = attrgetter("device", "traits", "inside", "outside")
    assert [figures(each) for each in found.experts] == [figures(each) for each in written.experts]
    # both sides of what an expert was shown are among the questions
    assert 0 < (np.log(WORK[:, 0]) > LARGEST_LOG_S).sum() < len(WORK)


def expert_with(**changes: Any) -> bytes:
    """The first of two experts changed."""
    first, second = ABOUT["experts"]
    return packed({**ABOUT, "experts": [{**first, **changes}, second]}, ARRAYS)


def without(name: str) -> bytes:
    return packed(ABOUT, {each: array for each, array in ARRAYS.items() if each != name})


def with_array(name: str, array: Any, dtype: Any = None) -> bytes:
    return packed(ABOUT, {**ARRAYS, name: np.array(array, dtype=ARRAYS[name].dtype if dtype is None else dtype)})


def low_and_high(place: int, low: float, high: float) -> bytes:
    first = ABOUT["experts"][0]
    ranges = {"low": list(first["low"]), "high": list(first["high"])}
    ranges["low"][place], ranges["high"][place] = low, high
    return expert_with(**ranges)


def raw(name: str, value: str) -> bytes:
    """A number that Python's JSON writes as nothing else can read it: NaN, or too large."""
    text = json.dumps(ABOUT)
    return packed(re.sub(rf'"{name}": (\[[^\]]*\]|[-\d.e]+)', f'"{name}": {value}', text, count=1).encode(), ARRAYS)


SAID = {
    "another schema": packed({**ABOUT, "schema": "rooflight.model/9"}, ARRAYS),
    "a newer schema, with more in it": packed({**ABOUT, "schema": "rooflight.model/9", "more": 1}, ARRAYS),
    "a schema of two lines": packed({**ABOUT, "schema": "a\nb"}, ARRAYS),
    "no schema": packed({name: ABOUT[name] for name in ABOUT if name != "schema"}, ARRAYS),
    "an unknown field": packed({**ABOUT, "code": "import os"}, ARRAYS),
    "a list": packed([1, 2], ARRAYS),
    "no JSON": packed(b"\x80\x04\x95", ARRAYS),
    "JSON without end": packed(b"[" * 100_000, ARRAYS),
    "nothing": packed(b"", ARRAYS),
    "other features": packed({**ABOUT, "features": ["log colour", *ABOUT["features"][1:]]}, ARRAYS),
    "features in another order": packed({**ABOUT, "features": ABOUT["features"][::-1]}, ARRAYS),
    "a feature that clears the screen": packed({**ABOUT, "features": ["\x1b[2J"]}, ARRAYS),
    "no features": packed({**ABOUT, "features": []}, ARRAYS),
    "another kind of work": packed({**ABOUT, "key": "aten::exp"}, ARRAYS),
    "a key of two lines": packed({**ABOUT, "key": "ge\nmm"}, ARRAYS),
    "a key that clears the screen": packed({**ABOUT, "key": "\x1b[2J"}, ARRAYS),
    "no experts": packed({**ABOUT, "experts": []}, ARRAYS),
    "an expert too many": packed({**ABOUT, "experts": [*ABOUT["experts"], ABOUT["experts"][0]]}, ARRAYS),
    "two experts of one device": expert_with(device="H100-SXM5-80GB"),
    "too few ranges": expert_with(low=[0.0]),
    "a range that ends before it begins": low_and_high(3, 2.0, 1.0),
    "a range without end": low_and_high(3, -1e308, 1e308),
    "an interval that does not hold the prediction": expert_with(inside=[0.1, 0.2]),
    "an interval backwards": expert_with(outside=[0.2, -0.2]),
    "an interval without end": expert_with(inside=[-1e300, 1e300]),
    "an interval of three": expert_with(inside=[-1, 0, 1]),
    "a new device's interval backwards": packed({**ABOUT, "unseen": [0.5, -0.5]}, ARRAYS),
    "a new device's interval without end": packed({**ABOUT, "unseen": [-0.5, 1e6]}, ARRAYS),
    "an interval that is no number": raw("inside", "[NaN, 0.1]"),
    "an error that is no number": raw("error", "NaN"),
    "an error that is too large": raw("error", "1e999"),
    "ranges that are no numbers": raw("low", "[NaN]"),
    "ranges of null": raw("low", "null"),
    "rows in words": raw("rows", '"many"'),
    "no rows": expert_with(rows=0),
    "rows below none": expert_with(rows=-5),
    "rows without end": raw("rows", "1" + "0" * 400),
    "an unknown trait": expert_with(traits={"colour": 1.0}),
    "a trait that cannot be": expert_with(traits={"peak": 1e200}),
}
TREES = {
    "no leaves": with_array("0.main.leaves", []),
    "another number of leaves": with_array("0.main.leaves", [3]),
    "leaves below none": with_array("0.main.leaves", [-1]),
    "leaves without end": with_array("0.main.leaves", [(1 << 31) - 1]),
    "a node in the place of no leaf": with_array("0.main.split", [1]),
    "a node far from any leaf": with_array("0.main.split", [255]),
    "a node too many": with_array("0.main.split", [0, 0]),
    "a code of no threshold": with_array("0.main.code", [1]),
    "too few codes": with_array("0.main.code", []),
    "thresholds of too few features": with_array("0.main.counts", [1]),
    "thresholds below none": with_array("0.main.counts", [-1, 2, *[0] * (len(ARRAYS["0.main.counts"]) - 2)]),
    "thresholds without end": with_array("0.main.counts", [(1 << 31) - 1] * len(ARRAYS["0.main.counts"])),
    "another feature": with_array("0.main.feature", [255]),
    "a threshold that is no number": with_array("0.main.threshold", [np.nan]),
    "a value that is no number": with_array("0.main.value", [np.nan, 0.0]),
    "a value without end": with_array("0.main.value", [0.0, np.inf]),
    "a value that leads to no time": with_array("1.beyond.value", [65504.0]),
    "a value that leads to no time from below": with_array("1.beyond.value", [-65504.0]),
    "wider integers": with_array("0.main.split", [0], np.int64),
    "integers the other way round": with_array("0.main.split", [0], ">u2"),
    "words": with_array("0.main.value", ["a", "b"], "U1"),
    "truth": with_array("0.main.value", [True, False], bool),
    "a table": with_array("0.main.value", [[0.25, 0.5]]),
    "a single number": with_array("0.main.value", 0.25),
    **{f"no {name}": without(name) for name in ARRAYS if name.startswith(("0.main", "1.beyond"))},
}


class Bomb:
    """What must never run."""

    went_off = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Bomb, "went_off", True)


def objects() -> bytes:
    """An array of Python objects, as numpy pickles it."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([Bomb(), Bomb()], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def numbers(descr: str, shape: str, body: bytes = bytes(4)) -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}", body)


def claiming(size: int) -> bytes:
    """A member that claims to unpack to ``size`` bytes."""
    content = bytearray(with_member(GOOD, "0.main.value.npy", bytes(100), zipfile.ZIP_DEFLATED))
    place = content.rindex(b"PK\x01\x02")  # its entry in the table of contents, the last
    content[place + 24 : place + 28] = size.to_bytes(4, "little")
    return bytes(content)


def encrypted() -> bytes:
    content = bytearray(GOOD)
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


VALUE = "0.main.value.npy"
FILES = {
    "empty": b"",
    "text": b"m,n,k,dur(us)\n1,2,3,4\n",
    "the JSON of older versions": b'{"schema": "rooflight.model/1"}',
    "an array alone": numbers("'<f4'", "(1,)"),
    "a pickle": pickle.dumps([Bomb()]),
    "another zip": with_member(packed(ABOUT, ARRAYS), "about.npy", b"hello"),
    "an array before the zip": numbers("'<f4'", "(1,)") + b"PK\x05\x06",
    "half": GOOD[: len(GOOD) // 2],
    "all but the last byte": GOOD[:-1],
    "no head": GOOD[100:],
    "objects instead of numbers": with_member(GOOD, VALUE, objects()),
    "objects instead of the description": with_member(GOOD, "about.npy", objects()),
    "objects beside the model": with_member(GOOD, "more.npy", objects()),
    "a pickle beside the model": with_member(GOOD, "more", pickle.dumps([Bomb()])),
    "a description in floats": with_member(GOOD, "about.npy", numbers("'<f4'", "(1,)", b"")),
    "an array without a head": with_member(GOOD, VALUE, bytes(64)),
    "an array of no bytes": with_member(GOOD, VALUE, b""),
    "an array longer than it is": with_member(GOOD, VALUE, numbers("'<f2'", "(9,)")),
    "an array too long for any memory": with_member(GOOD, VALUE, numbers("'<f2'", f"({1 << 60},)")),
    "an array of negative length": with_member(GOOD, VALUE, numbers("'<f2'", "(-2,)")),
    "an array of records": with_member(GOOD, VALUE, numbers("[('a', '<f2')]", "(2,)")),
    "an array of nothing": with_member(GOOD, VALUE, numbers("'|V0'", "(2,)", b"")),
    "a call in a head": with_member(GOOD, VALUE, npy("__import__('os').abort()")),
    "a head without end": with_member(GOOD, VALUE, npy("(" * 9000)),
    "a deep head": with_member(GOOD, VALUE, npy("-" * 9000 + "1")),
    "a head too long": with_member(GOOD, VALUE, npy(" " * 60_000)),
    "more bytes than it says": claiming(4),
    "fewer bytes than it says": claiming(1 << 20),
    "more than any memory": claiming((1 << 32) - 2),
    "encrypted": encrypted(),
    "a bomb of zeros": with_member(GOOD, "more.npy", bytes(1 << 28), zipfile.ZIP_DEFLATED),
    "a bomb packed otherwise": with_member(GOOD, "more.npy", bytes(1 << 20), zipfile.ZIP_BZIP2),
}  # fmt: skip


@pytest.mark.parametrize("content", [*SAID.values(), *TREES.values(), *FILES.values()], ids=[*SAID, *TREES, *FILES])
def test_damaged_and_hostile_models_are_refused_in_one_line(content: bytes):
    with pytest.raises(ValueError, match=REFUSED):
        decode(content)
    assert not Bomb.went_off


@pytest.mark.parametrize("beside", [{}, {"more": np.ones(3)}])
def test_what_is_beside_a_model_is_passed_over(beside: dict[str, Any]):
    assert np.array_equal(answers(decode(packed(ABOUT, {**ARRAYS, **beside}))), answers(small_model()))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_bytes_changed_at_random_are_refused_or_still_predict(changes: list[tuple[int, int]], cut: bool):
    content = bytearray(GOOD)
    for place, byte in changes:
        content[place] = byte
    check_file(bytes(content[: changes[0][0]] if cut else content))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_numbers_changed_at_random_are_refused_or_still_predict(data: st.DataObject):
    """The same where a checksum does not give it away."""
    name = data.draw(st.sampled_from(sorted(name for name in ARRAYS if len(ARRAYS[name]))))
    array = ARRAYS[name].copy()
    bytes_of = array.view(np.uint8)
    bytes_of[data.draw(st.integers(0, len(bytes_of) - 1))] = data.draw(st.integers(0, 255))
    check_file(packed(ABOUT, {**ARRAYS, name: array}))


figures = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, -1, 1e9, -1e9, 249.0, 1e308])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["inside", "outside", "low", "high", "rows", "error", "traits"]), st.data())
def test_what_is_said_changed_at_random_is_refused_or_still_predicts(field: str, data: st.DataObject):
    first = ABOUT["experts"][0]
    old = first[field]
    if isinstance(old, dict):
        value: Any = data.draw(st.fixed_dictionaries(dict.fromkeys(old, figures)))
    elif isinstance(old, list):
        value = list(old)
        value[data.draw(st.integers(0, len(old) - 1))] = data.draw(figures)
    else:
        value = data.draw(st.integers() | figures)
    check_file(expert_with(**{field: value}))


def test_a_model_that_says_all_that_it_may_still_predicts():
    """The largest answers and intervals that are taken."""
    first, second = ABOUT["experts"]
    wide = {"inside": [-249.0, 249.0], "outside": [-249.0, 249.0]}
    about = {**ABOUT, "unseen": [-249.0, 249.0], "experts": [{**first, **wide}, {**second, **wide}]}
    arrays = {**ARRAYS, "1.beyond.value": np.array([249.0], dtype=np.float16)}
    check_answers(decode(packed(about, arrays)))


def test_reading_a_model_takes_no_more_memory_than_it_says(tmp_path: Path):
    """A megabyte that claims to be a gigabyte is refused before a byte of it is unpacked."""
    import tracemalloc

    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=REFUSED):
            decode(claiming(1 << 30))
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_one_expert_is_a_model():
    assert model(small_model().experts[0]).devices == (A100.name,)


ADD = "aten::add"


def saved(folder: Path, *keys: str, tables: int = 2) -> Path:
    paths = [folder.parent / "data" / f"{number}" / "table.csv" for number in range(tables)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(path.parent.name))
    models = [model(expert(A100, 0.5, 0.5, key=key), key=key) for key in keys or (PRODUCT_KEY,)]
    return Predictor.of(models).save(folder, paths)


def test_what_was_learned_from_is_listed_without_the_place_of_it(tmp_path: Path):
    folder = saved(tmp_path / "models")
    found = json.loads((folder / NAME).read_text())
    (fit,) = found["fits"]
    assert fit["files"] == {f"{n}/table.csv": sha256(str(n).encode()).hexdigest() for n in range(2)}
    assert "numpy" in fit["libraries"]
    (name,) = found["models"]
    assert found["models"][name] == {
        "key": PRODUCT_KEY, "sha256": sha256((folder / name).read_bytes()).hexdigest(), "fit": 0
    }  # fmt: skip
    assert str(tmp_path) not in (folder / NAME).read_text()


def test_models_of_earlier_fits_stay_listed_with_their_tables(tmp_path: Path):
    folder = saved(tmp_path / "models", PRODUCT_KEY, ADD)
    saved(folder, ADD, tables=1)
    found = read_manifest(folder)
    assert found is not None
    assert {entry.key: len(found.fits[entry.fit].files) for entry in found.models.values()} == {PRODUCT_KEY: 2, ADD: 1}
    saved(folder, PRODUCT_KEY, ADD, tables=1)
    found = read_manifest(folder)
    assert found is not None
    assert len(found.fits) == 1  # nothing is left of the first
    assert Predictor.load(folder).predict_products(8.0, 8.0, 8.0, "fp16", A100).time_s > 0  # type: ignore[arg-type]


def test_two_fits_into_one_folder_at_once_are_both_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [Predictor.of([model(expert(A100, 0.5, 0.5, key=key), key=key)]) for key in (PRODUCT_KEY, ADD)]
    monkeypatch.setattr("rooflight.prediction.model.files._commit", lambda: time.sleep(0.2) or "")  # both have read
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: each.save(tmp_path), both))
    assert set(Predictor.load(tmp_path).models) == {PRODUCT_KEY, ADD}


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ValueError, match=match) as error:
        _ = Predictor.load(folder).models
    assert "\n" not in str(error.value)
    assert str(error.value).count(str(folder)) == 1


def test_files_that_are_not_those_of_the_manifest_are_refused(tmp_path: Path):
    folder, other = saved(tmp_path / "models", PRODUCT_KEY, ADD), saved(tmp_path / "other", "aten::exp")
    first, *_ = sorted(folder.glob("*.npz"))
    first.write_bytes(encode(model(expert(H100, 0.5, 0.5))))  # a whole model, but another
    refused(folder, "is not the file that manifest.json beside it lists: fit it again")
    first.unlink()
    refused(folder, "manifest.json lists .*, not in the folder: copy it whole, or fit the models again")
    saved(folder, ADD)
    assert Predictor.load(folder).model(ADD) is not None  # whole again
    (path,) = other.glob("*.npz")
    (folder / path.name).write_bytes(path.read_bytes())
    refused(folder, "is not in manifest.json beside it: fit it again, or move it elsewhere")
    for text in ("", "{}", "[1", '{"schema": "rooflight.manifest/9", "models": {}, "fits": []}'):
        (folder / NAME).write_text(text)
        refused(folder, "fit the models again")
    (folder / NAME).unlink()
    assert Predictor.load(folder).models[PRODUCT_KEY].answer(products(3), A100).slowdown == pytest.approx(0.5)
