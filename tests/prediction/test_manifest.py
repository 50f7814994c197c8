"""The list beside models: what they were learned from. A file that is not the one listed is refused in one line."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from handmade_models import A100, H100, expert, model, products

from rooflight.prediction.model.files import NAME, encode, read_manifest
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.facts import PRODUCT_KEY

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


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ValueError, match=match) as error:
        _ = Predictor.load(folder).models
    assert "\n" not in str(error.value)
    assert str(error.value).count(str(folder)) == 1


def test_a_file_that_is_not_the_one_listed_is_refused(tmp_path: Path):
    folder = saved(tmp_path / "models")
    (path,) = folder.glob("*.npz")
    path.write_bytes(encode(model(expert(H100, 0.5, 0.5))))  # a whole model, but another
    refused(folder, "is not the file that manifest.json beside it lists: fit it again")


def test_a_file_that_is_not_listed_is_refused(tmp_path: Path):
    one, other = saved(tmp_path / "one"), saved(tmp_path / "other", ADD)
    (path,) = other.glob("*.npz")
    (one / path.name).write_bytes(path.read_bytes())
    refused(one, "is not in manifest.json beside it: fit it again, or move it elsewhere")


def test_a_file_that_is_listed_and_not_there_is_refused(tmp_path: Path):
    folder = saved(tmp_path / "models", PRODUCT_KEY, ADD)
    sorted(folder.glob("*.npz"))[0].unlink()
    refused(folder, "manifest.json lists .*, not in the folder: copy it whole, or fit the models again")


def test_models_that_are_fitted_again_in_a_folder_without_one_of_them_are_whole(tmp_path: Path):
    folder = saved(tmp_path / "models", PRODUCT_KEY, ADD)
    sorted(folder.glob("*.npz"))[0].unlink()
    saved(folder, ADD)
    assert Predictor.load(folder).model(ADD) is not None


@pytest.mark.parametrize("text", ["", "{}", "[1", '{"schema": "rooflight.manifest/9", "models": {}, "fits": []}'])
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path, text: str):
    folder = saved(tmp_path / "models")
    (folder / NAME).write_text(text)
    refused(folder, "fit the models again")


def test_a_folder_without_a_manifest_is_read(tmp_path: Path):
    folder = saved(tmp_path / "models")
    (folder / NAME).unlink()
    (found,) = Predictor.load(folder).models.values()
    assert found.answer(products(3), A100).slowdown == pytest.approx(0.5)
