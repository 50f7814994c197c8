"""The Gaussian process for few rows: what it learns, where it stops, and which files are refused."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rooflight.devices import get
from rooflight.prediction.fit.experts import learn, teach
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.files import decode, encode
from rooflight.prediction.model.model import Model
from rooflight.prediction.model.smooth import MOST_ROWS, Smooth, lone_point, smooth
from rooflight.prediction.model.trees import Trees
from rooflight.prediction.work.facts import FACTS, PRODUCT_KEY, WorkKind, product_facts
from rooflight.prediction.work.features import features_of

A100 = get("A100-SXM4-80GB")


def wave(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(2 * values[:, 0]) + values[:, 1] ** 2)


def points(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 3))


@cache
def few_rows(count: int = 60, noise: float = 0.02) -> Shown:
    rng = np.random.default_rng(3)
    sizes = np.floor(np.exp(rng.uniform(np.log(64), np.log(8192), (3, count))))
    facts = product_facts(*sizes, "fp16", A100)
    slowdown = 0.3 + 0.2 * np.sin(np.log(sizes[0])) + 0.1 * np.log(8192 / sizes[2]) + rng.normal(0, noise, count)
    return Shown(key=PRODUCT_KEY, device=A100, facts=facts, slowdown=np.maximum(0.0, slowdown))


def test_a_smooth_function_is_learned_from_few_rows():
    shown, asked = points(80), points(200, seed=1) * 0.9
    assert np.abs(smooth(shown, wave(shown)).predict(asked) - wave(asked)).max() < 0.05


def test_of_more_rows_than_it_keeps_it_learns_from_some():
    values = points(MOST_ROWS + 300)
    learned = smooth(values, wave(values))
    assert len(learned.weight) == MOST_ROWS
    asked = points(50, seed=1)
    np.testing.assert_allclose(learned.predict(asked), wave(asked), atol=0.05)


def test_what_does_not_vary_is_no_matter():
    shown = points(60)
    shown[:, 2] = 7.0
    learned = smooth(shown, wave(shown))
    other = shown.copy()
    other[:, 2] = -1e6
    assert np.array_equal(learned.predict(shown), learned.predict(other))


def test_noise_is_not_learned_by_heart():
    shown = points(300)
    noisy = wave(shown) + np.random.default_rng(2).normal(0, 0.2, 300)
    asked = points(200, seed=4) * 0.8
    assert np.sqrt(np.mean((smooth(shown, noisy).predict(asked) - wave(asked)) ** 2)) < 0.1


def test_outside_of_all_points_it_answers_as_at_their_edge():
    shown = points(80)
    learned = smooth(shown, wave(shown))
    edge, far = np.array([[1.0, 0.0, 0.0]]) * shown[:, 0].max(), np.array([[1e6, 0.0, 0.0]])
    assert learned.predict(far) == pytest.approx(learned.predict(edge), abs=1e-5)
    beyond = learned.predict(np.random.default_rng(0).normal(0, 1e3, (500, 3)))
    assert beyond.min() >= wave(shown).min() - 1e-9
    assert beyond.max() <= wave(shown).max() + 1e-9


def test_a_constant_target_a_single_feature_and_rows_by_the_block():
    shown, asked = points(50), points(1100, seed=5)
    assert np.allclose(smooth(shown, np.full(50, 2.5)).predict(points(5, seed=9)), 2.5)
    assert np.allclose(smooth(np.full((50, 3), 1.0), np.full(50, 2.5)).predict(shown), 2.5)
    learned = smooth(shown, wave(shown))
    one_by_one = np.concatenate([learned.predict(asked[place : place + 1]) for place in range(1100)])
    assert np.allclose(learned.predict(asked), one_by_one)


GOOD = Smooth(
    scale=np.array([1.0, 0.0], np.float32),
    points=np.array([[0.0, 0.0], [1.0, 0.0]], np.float32),
    weight=np.array([0.5, -0.5], np.float32),
    mean=1.0,
    floor=0.0,
    ceiling=2.0,
)


@pytest.mark.parametrize(
    "changes",
    [
        {"scale": np.array([1.0], np.float32)},
        {"scale": np.array([1.0, -1.0], np.float32)},
        {"scale": np.array([[1.0, 1.0]], np.float32)},
        {"points": np.zeros((3, 2), np.float32)},
        {"points": np.array([[0.0, 0.0], [np.nan, 0.0]], np.float32)},
        {"weight": np.array([np.inf, 0.0], np.float32)},
        {"weight": np.zeros(0, np.float32), "points": np.zeros((0, 2), np.float32)},
        {"weight": np.zeros(MOST_ROWS + 1, np.float32), "points": np.zeros((MOST_ROWS + 1, 2), np.float32)},
        {"mean": np.nan},
        {"ceiling": np.inf},
    ],
)
def test_arrays_that_make_no_sense_are_refused(changes: dict[str, object]):
    with pytest.raises(ValueError, match="points"):
        replace(GOOD, **changes)


@cache
def learned() -> Model:
    return learn([few_rows()])


def test_few_rows_are_learned_smoothly_and_better_unless_only_trees_may_be():
    (expert,) = learned().experts
    assert isinstance(expert.main, Smooth)
    trees = teach(few_rows(), trees_only=True)
    assert isinstance(trees.main, Trees)
    assert expert.error < trees.error


def test_a_smooth_model_survives_its_file():
    before = learned()
    after = decode(encode(before))
    facts = few_rows(50).facts
    for name in ("slowdown", "low", "high", "known"):
        assert np.array_equal(*(getattr(each.answer(facts, A100), name) for each in (before, after)))


def members(model: Model) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(encode(model))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("name", ["0.main.scale", "0.main.points", "0.main.weight", "0.main.limits"])
@pytest.mark.parametrize("how", ["gone", "short", "other kind", "no numbers"])
def test_a_damaged_smooth_model_is_one_line(name: str, how: str):
    files = members(learned())
    array = np.load(io.BytesIO(files[f"{name}.npy"]))
    if how == "gone":
        del files[f"{name}.npy"]
    else:
        changed = {
            "short": array[:-1],
            "other kind": array.astype(np.int64),
            "no numbers": np.full_like(array, np.nan),
        }[how]
        buffer = io.BytesIO()
        np.save(buffer, changed)
        files[f"{name}.npy"] = buffer.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    with pytest.raises(ValueError, match="fit it again") as error:
        decode(out.getvalue())
    assert "\n" not in str(error.value)


def test_alignment_does_not_make_work_unknown():
    shown = few_rows(300)
    expert = teach(shown, trees_only=True)
    odd = shown.facts.copy()
    names = FACTS[WorkKind.PRODUCT]
    odd[:, names.index("n")] = np.clip(np.round(odd[:, names.index("n")] / 512), 1, 15) * 512
    values = features_of(PRODUCT_KEY, odd, A100)
    assert expert.knows(PRODUCT_KEY, values).mean() > 0.9


def test_nothing_is_beside_a_process_of_one_factor():
    assert not lone_point(3, 0.5).beside(np.zeros((2, 3)), [0, 1]).any()
    near = smooth(np.array([[0.0, 0.0], [3.0, 0.0], [6.0, 0.0]]), np.array([0.0, 1.0, 2.0]))
    asked = np.array([[0.5, 0.0], [1.5, 0.0], [6.6, 9.0]])
    assert near.beside(asked, [0, 1]).tolist() == [True, False, True]
    assert near.beside(asked, [0, 1], more=1.0).tolist() == [True, True, True]
