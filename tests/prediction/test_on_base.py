"""Rows on top of the models of a folder: which models change, what is written, and where each comes from."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from handmade_models import A100, H100, expert, model, products, shown

from rooflight.devices import get
from rooflight.prediction.fit.base import ENOUGH, base_of, learn_on, save_on
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.files import NAME, read_manifest
from rooflight.prediction.model.model import Model
from rooflight.prediction.predictor import SHIPPED, SUFFIX, Predictor
from rooflight.prediction.work.facts import FACTS, OTHERS_KEY, PRODUCT_KEY, WorkKind

L4 = get("L4")
ADD, SILU, GELU = "aten::add", "aten::silu", "aten::gelu"


def base(*keys: str) -> list[Model]:
    return [model(expert(A100, 0.5, 0.5, key=key), key=key) for key in keys]


def plain(key: str, slowdown: float, count: int = 6, device=L4, noise: float = 0.0) -> Shown:
    """Rows of an op that waits for memory: [rows, width] in and out, in half precision."""
    rng = np.random.default_rng(len(key))
    rows, width = np.round(np.exp(rng.uniform(np.log(64), np.log(8192), (2, count))))
    moved = 4.0 * rows * width
    memory_s = moved / device.dram_bytes_per_s
    facts = np.column_stack([
        memory_s, memory_s / 9, memory_s, moved, 0 * rows, rows * width, 1 + 0 * rows, 0 * rows, 2 + 0 * rows,
        rows, width, 2 * rows * width, 2 + 0 * rows, 0 * rows, 0 * rows,
    ])  # fmt: skip
    return Shown(key=key, device=device, facts=facts, slowdown=slowdown + rng.normal(0, noise, count))


def learned(models: list[Model], *rows: Shown):
    found = learn_on(Predictor.of(models), rows)
    return found, {each.key: each for each in found.models}


def test_rows_of_a_known_kind_are_added_to_it_and_other_kinds_stay():
    found, models = learned(base(PRODUCT_KEY, ADD), shown(1.2, products(4, device=L4), L4))
    assert list(models) == [PRODUCT_KEY]
    assert models[PRODUCT_KEY].devices == (A100.name,)
    (added,) = found.added
    assert (added.key, added.device, added.rows, added.how) == (PRODUCT_KEY, L4.name, 4, "scale")
    assert found.few == {}
    # rows of several files are one, and devices are apart
    parts = [shown(0.8, products(3, device=L4, seed=seed), L4) for seed in (1, 2)]
    found, models = learned(base(PRODUCT_KEY), *parts, shown(0.9, products(4, device=H100), H100))
    assert {(each.device, each.rows) for each in found.added} == {(L4.name, 6), (H100.name, 4)}
    assert len(models[PRODUCT_KEY].refinements) == 2


def test_a_kind_that_the_base_does_not_know_is_learned_alone_where_its_rows_are_enough():
    found, models = learned(base(PRODUCT_KEY), plain(SILU, 0.8, 14, noise=0.01))
    assert models[SILU].devices == (L4.name,)
    assert found.added == ()
    found, models = learned(base(PRODUCT_KEY), plain(SILU, 1.2))  # few rows of what nothing is like
    assert models == {}
    assert found.few == {f"{SILU} on {L4.name}": 6}


def test_a_kind_with_few_rows_is_answered_on_top_of_other_ops():
    models = base(OTHERS_KEY)
    few = plain(SILU, 1.2)
    found, changed = learned(models, few)
    assert [(each.key, each.rows) for each in found.added] == [(SILU, 6)]
    other = plain(GELU, 0.0)
    predicted = changed[OTHERS_KEY].answer(few.facts, L4, SILU).slowdown
    # six rows missed by 0.7, drawn to 0 as if two more had not been: at least 0.7 * 6 / 8
    assert (predicted > 0.5 + 0.7 * 6 / 8 - 1e-6).all()
    unheard = [each.answer(other.facts, L4, GELU).slowdown for each in (models[0], changed[OTHERS_KEY])]
    assert (unheard[0] == unheard[1]).all()


def test_several_kinds_teach_what_other_ops_have_in_common():
    found, changed = learned(base(OTHERS_KEY, ADD), plain(SILU, 1.2), plain(ADD, 1.1), plain(GELU, 1.2))
    assert {each.key for each in found.added} == {OTHERS_KEY, ADD, SILU, GELU}
    unheard = changed[OTHERS_KEY].answer(plain("aten::exp", 0.0).facts, L4, "aten::exp").slowdown
    assert (unheard > 0.9).all()
    # on the device that taught the base nothing changes
    facts = plain(SILU, 0.0, device=A100).facts
    assert (changed[OTHERS_KEY].answer(facts, A100, SILU).slowdown == 0.5).all()


def test_many_rows_make_an_expert_where_it_does_better():
    """Steps, as of a library that takes another kernel: trees know where they are, what is smooth does not."""
    facts = products(2 * ENOUGH, seed=4, device=L4)
    fact = dict(zip(FACTS[WorkKind.PRODUCT], facts.T, strict=True))
    slowdown = 0.3 + 1.0 * (fact["k"] > 500) + 0.7 * (fact["m"] > 300) + 1.4 * (fact["n"] < 100) * (fact["m"] > 300)
    found, models = learned(base(PRODUCT_KEY), shown(slowdown, facts, L4))
    (added,) = found.added
    assert added.how == "expert"
    assert added.error < 0.5 * added.error_before
    assert models[PRODUCT_KEY].devices == (A100.name, L4.name)
    assert models[PRODUCT_KEY].refinements == ()
    assert models[PRODUCT_KEY].answer(facts, L4).slowdown == pytest.approx(slowdown, abs=0.5)


def test_no_expert_joins_where_rows_of_another_device_rest_on_the_others():
    _, models = learned(base(PRODUCT_KEY), shown(0.8, products(6, device=H100), H100))
    rows = shown(0.9, products(ENOUGH, device=L4), L4)
    _, models = learned([models[PRODUCT_KEY]], rows)
    assert models[PRODUCT_KEY].devices == (A100.name,)
    assert [each.device for each in models[PRODUCT_KEY].refinements] == [H100.name, L4.name]


def written(root: Path, models: list[Model]) -> Path:
    table = root / "base.csv"
    root.mkdir(parents=True, exist_ok=True)
    table.write_text("base")
    return Predictor.of(models).save(root / "base", [table])


def on_top(root: Path, folder: Path, *rows: Shown, out: str = "mine") -> Path:
    table = root / "mine.csv"
    table.write_text("mine")
    found = learn_on(Predictor.load(folder), rows)
    return save_on(folder, str(folder), found.models, root / out, [table])


def test_a_folder_has_all_models_of_the_base_and_says_which_that_were(tmp_path: Path):
    folder = written(tmp_path, base(PRODUCT_KEY, ADD))
    mine = on_top(tmp_path, folder, shown(1.2, products(4, device=L4), L4))
    found = read_manifest(mine)
    assert found is not None
    assert set(found.models) == {path.name for path in mine.glob(f"*{SUFFIX}")}
    by_key = {entry.key: found.fits[entry.fit] for entry in found.models.values()}
    assert by_key[PRODUCT_KEY].files == {"mine.csv": sha256(b"mine").hexdigest()}
    assert by_key[ADD].files == {"base.csv": sha256(b"base").hexdigest()}
    assert by_key[ADD].on is None
    on = by_key[PRODUCT_KEY].on
    assert on is not None
    lines = "".join(
        f"{path.name} {sha256(path.read_bytes()).hexdigest()}\n" for path in sorted(folder.glob(f"*{SUFFIX}"))
    )
    assert (on.name, on.sha256) == ("base", sha256(lines.encode()).hexdigest())
    assert str(tmp_path) not in (mine / NAME).read_text()
    one, other = (Predictor.load(each) for each in (folder, mine))
    sizes = np.array([512.0])
    for device, same in ((A100, True), (L4, False)):
        times = [each.predict_products(sizes, sizes, sizes, "float16", device).time_s for each in (one, other)]
        assert (times[0] == times[1]) == same


def test_rows_may_come_on_top_of_a_folder_into_itself_and_twice(tmp_path: Path):
    folder = written(tmp_path, base(PRODUCT_KEY, ADD))
    on_top(tmp_path, folder, shown(0.8, products(4, device=L4), L4), out="base")
    on_top(tmp_path, folder, shown(0.9, products(4, device=H100), H100), out="base")
    on_top(tmp_path, folder, shown(1.2, products(5, device=L4), L4), out="base")
    found = Predictor.load(folder).models[PRODUCT_KEY]
    assert {each.device: each.rows for each in found.refinements} == {H100.name: 4, L4.name: 5}
    manifest = read_manifest(folder)
    assert manifest is not None
    assert len(manifest.fits) == 2  # the first one's of the other kind, and the last


def test_an_earlier_folder_is_written_over(tmp_path: Path):
    folder, rows = written(tmp_path, base(PRODUCT_KEY, ADD)), shown(0.8, products(4, device=L4), L4)
    on_top(tmp_path, folder, rows, plain(ADD, 0.9))
    mine = on_top(tmp_path, folder, plain(ADD, 0.9))
    models = Predictor.load(mine).models  # reads, and checks, every file
    assert models[PRODUCT_KEY].refinements == ()
    assert len(models[ADD].refinements) == 1
    content = json.loads((folder / NAME).read_text())
    for entry in content["models"].values():
        entry["sha256"] = "0" * 64
    (folder / NAME).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"is not the file that manifest.json beside it lists: fit it again"):
        on_top(tmp_path, folder, rows)
    (folder / NAME).unlink()  # a base without a manifest is taken as it is
    assert set(Predictor.load(on_top(tmp_path, folder, rows)).models) == {PRODUCT_KEY, ADD}


def test_a_base_is_shipped_or_a_folder_with_models(tmp_path: Path):
    assert base_of("shipped") == SHIPPED
    with pytest.raises(ValueError, match=r"holds no models: give shipped, or a folder that rooflight fit wrote"):
        base_of(str(tmp_path))


def test_the_shipped_models_learn_from_five_rows_of_a_device_that_is_not_among_them():
    """T4-like rows on an L4, half as fast as the models say."""
    predictor = Predictor()
    model_ = predictor.models[ADD]
    facts = plain(ADD, 0.0, 5).facts
    before = model_.answer(facts, L4).slowdown
    found = learn_on(predictor, [Shown(key=ADD, device=L4, facts=facts, slowdown=before + np.log(2))])
    refined = next(each for each in found.models if each.key == ADD)
    after = refined.answer(facts, L4)
    # at least five sevenths of the way
    assert (after.slowdown - before > 5 / 7 * np.log(2) - 1e-6).all()
    assert after.known.all()
