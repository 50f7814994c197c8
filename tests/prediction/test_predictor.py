"""Predictions: of ops, of shapes, of products by the thousand, and as estimate-train-time calls them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest
from builders import op, spec
from gemm_table import gemm
from handmade_models import A100, H100, INSIDE, expert, model, stump
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_tables import A100_FILE, GRID, H100_FILE, VECTORS, write_table

from rooflight.costs.operators import registry
from rooflight.devices import get
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.fit.experts import LEAST_ROWS
from rooflight.prediction.fit.fitting import fit
from rooflight.prediction.predictor import SUFFIX, Predictor
from rooflight.prediction.read import read
from rooflight.prediction.work.facts import OTHERS_KEY, PRODUCT_KEY
from rooflight.prediction.work.features import names_of, steady_features
from rooflight.prediction.work.floors import FASTEST, SHORTEST_KERNEL_S, small_kernel_s
from rooflight.records.estimate import Estimate, Source

X = spec((1 << 20,))
ADD = op("aten::add", {"self": X, "other": X}, [X])
EXP = op("aten::exp", {"self": X}, [X])
VIEW = op("aten::view", {"self": spec((8,), storage=0)}, [spec((2, 4), storage=0)])
UNKNOWN = op("nobody::knows", {"x": X}, [X])
SMALL, LARGE = gemm(512, 512, 512), gemm(1 << 15, 1 << 15, 1 << 14)
OTHERS = model(expert(A100, log(1.5), log(1.5), key=OTHERS_KEY), key=OTHERS_KEY)
REDUCES = Predictor.of([model(expert(A100, log(1.5), log(1.5), key="all-reduce"), key="all-reduce")])
BY_HAND = Predictor.of([model(expert(A100, log(2), log(3)))])
"""Twice the bound; of work beyond a millisecond, three times."""


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """What 64 products that took twice their bound, give or take 5 %, teach."""
    return Predictor.of(fit(read(write_table(tmp_path_factory.mktemp("tables"), noise=0.05))).models)


def test_what_was_learned_is_predicted(predictor: Predictor):
    estimate = predictor.predict_shape("gemm", {"m": 1024, "n": 1024, "k": 1024}, "fp16", A100)["step"]
    # 2 * 1024^3 FLOPs at 312 TFLOP/s
    assert estimate.bound_s == pytest.approx(2 * 1024**3 / 312e12)
    assert estimate.time_s == pytest.approx(2 * estimate.bound_s, rel=0.1)
    assert estimate.low_s < estimate.time_s < estimate.high_s < 1.5 * estimate.time_s
    assert estimate.source is Source.REGRESSED
    assert not estimate.extrapolated


def test_an_answer_is_the_bound_times_a_slowdown_and_its_interval():
    small, large = BY_HAND.predict(SMALL, A100), BY_HAND.predict(LARGE, "A100-SXM4-80GB")
    assert small.time_s == pytest.approx(2 * small.bound_s)
    assert small.high_s == pytest.approx(small.time_s * np.exp(INSIDE[1]))
    assert small.low_s == pytest.approx(small.time_s * np.exp(INSIDE[0]))
    assert not small.extrapolated
    assert large.time_s == pytest.approx(3 * large.bound_s)
    assert large.extrapolated
    assert large.source is Source.REGRESSED


def test_a_device_never_shown_is_extrapolated_and_less_sure():
    here, there = BY_HAND.predict(SMALL, A100), BY_HAND.predict(SMALL, H100)
    assert not here.extrapolated
    assert there.extrapolated
    assert there.high_s / there.time_s > here.high_s / here.time_s
    assert there.bound_s <= there.low_s


@pytest.mark.parametrize("models", [(), (model(expert(A100, 0.5, 0.5)),)], ids=["no models", "models of others"])
def test_an_unknown_kind_takes_half_the_speed_of_light_within_a_factor_of_four(models: tuple):
    estimate = Predictor.of(models).predict(EXP, A100)
    assert estimate.source is Source.TYPICAL
    assert estimate.extrapolated
    assert estimate.time_s == pytest.approx(2 * estimate.bound_s)
    assert estimate.low_s == estimate.bound_s  # a quarter of twice the bound would beat it
    assert estimate.high_s == pytest.approx(8 * estimate.bound_s)


def test_an_op_that_was_not_measured_takes_what_others_do():
    known = model(expert(A100, log(4), log(4), key="aten::add"), key="aten::add")
    both = Predictor.of([OTHERS, known])
    similar = both.predict(EXP, A100)
    assert similar.time_s == pytest.approx(1.5 * similar.bound_s)
    assert similar.source is Source.SIMILAR
    assert similar.extrapolated
    assert both.predict(ADD, A100).source is Source.REGRESSED
    assert both.predict(SMALL, A100).source is Source.TYPICAL  # products are not alike


@pytest.mark.parametrize("name", [name for name in registry.names() if registry.find(name).ranks])
def test_a_collective_is_not_predicted_from_work_without_a_network(name: str):
    (estimate,) = Predictor.of([OTHERS]).predict_shape(name, [1 << 20, 1, 4], "fp16", A100).values()
    assert estimate.source is Source.TYPICAL


def test_a_collective_that_was_not_measured_takes_what_an_all_reduce_of_as_many_bytes_does():
    shape = [1 << 24, 1, 4]
    (known,) = REDUCES.predict_shape("all_reduce", shape, "fp16", A100).values()
    (estimate,) = REDUCES.predict_shape("all_gather", shape, "fp16", A100).values()
    assert (known.source, estimate.source) == (Source.REGRESSED, Source.SIMILAR)
    assert estimate.extrapolated
    assert estimate.time_s == pytest.approx(1.5 * estimate.bound_s)
    assert estimate.low_s == estimate.bound_s  # half would beat it
    assert estimate.high_s == pytest.approx(max(3, 1.5 * known.high_s / known.time_s) * estimate.bound_s)


def test_the_bound_of_an_all_reduce_is_that_of_switches_that_add_and_its_time_is_as_taught():
    shape = [1 << 24, 1, 8]
    adding = get("H100-SXM5-80GB")
    silent = replace(adding, links=tuple(replace(link, adds=False) for link in adding.links))
    with_switches, without = (
        Predictor.of([]).predict_shape("all_reduce", shape, "fp16", on)["step"] for on in (adding, silent)
    )
    assert without.bound_s == pytest.approx(2 * 7 / 8 * 2**25 / 450e9)
    assert with_switches.bound_s == pytest.approx(2**25 / 450e9)
    assert with_switches.time_s == without.time_s


def test_a_collective_that_was_not_measured_takes_what_an_all_reduce_does_between_nodes_too():
    # 8 nodes of 1: an all-reduce of S and an all-gather of S / 4 a rank send 7 / 4 S
    (known,) = REDUCES.predict_shape("all_reduce", [1 << 24, 8, 1], "fp16", A100).values()
    (estimate,) = REDUCES.predict_shape("all_gather", [1 << 22, 8, 1], "fp16", A100).values()
    assert estimate.source is Source.SIMILAR
    assert estimate.time_s == pytest.approx(max(known.time_s, estimate.bound_s))
    assert estimate.low_s >= estimate.bound_s > known.bound_s  # no switch adds for an all-gather


def test_a_collective_is_answered_by_its_own_model_where_the_device_was_measured_on_as_many_nodes():
    key = "all-gather"
    gathers = expert(A100, log(3), log(3), key=key)
    for ends in (gathers.low, gathers.high):
        ends[names_of(key).index("log nodes")] = 0  # one node
    reduces = expert(A100, log(1.5), log(1.5), key="all-reduce")
    both = Predictor.of([model(reduces, key="all-reduce"), model(gathers, key=key)])

    def asked(predictor: Predictor, nodes: int, device: DeviceSpec) -> Estimate:
        (found,) = predictor.predict_shape("all_gather", [1 << 24, nodes, 4], "fp16", device).values()
        return found

    here = asked(both, 1, A100)
    assert (here.source, here.extrapolated) == (Source.REGRESSED, False)
    assert here.time_s == pytest.approx(3 * here.bound_s)
    for nodes, device in ((2, A100), (1, H100)):
        assert asked(both, nodes, device) == asked(REDUCES, nodes, device)
        # without a model of all-reduces there is nothing to leave it to
        assert asked(Predictor.of([model(gathers, key=key)]), nodes, device).source is Source.REGRESSED
    # many shapes at once, some here and some there
    many = {"elements": np.full(2, 1 << 24), "gpus_per_node": np.full(2, 4), "nodes": np.array([1, 2])}
    (batch,) = both.predict_shapes("all_gather", many, "fp16", A100).values()
    assert batch.time_s == pytest.approx([asked(both, nodes, A100).time_s for nodes in (1, 2)])
    assert batch.extrapolated.tolist() == [False, True]


def test_a_device_never_shown_is_answered_by_those_that_know_so_many_ranks_and_nodes():
    key = "all-reduce"
    ranks_a_node = names_of(key).index("log ranks a node")
    fewer = expert(H100, log(9), log(9), key=key)
    fewer.high[ranks_a_node] = log(4)
    more = expert(A100, log(1.5), log(1.5), key=key)
    both = Predictor.of([model(fewer, more, key=key)])
    asked = {"elements": 1 << 24, "nodes": 1}
    (eight,) = both.predict_shape("all_reduce", {**asked, "gpus_per_node": 8}, "fp16", "H200-SXM-141GB").values()
    (four,) = both.predict_shape("all_reduce", {**asked, "gpus_per_node": 4}, "fp16", "H200-SXM-141GB").values()
    assert eight.time_s == pytest.approx(1.5 * 2 * 7 / 8 * eight.bound_s, rel=1e-3)  # taught where no switch adds
    assert four.time_s > 5 * four.bound_s  # an H100 is more like an H200 than an A100 is


def test_work_without_a_cost_cannot_be_predicted():
    for works, name in (
        (UNKNOWN, "nobody::knows"),
        ((EXP, UNKNOWN), "nobody::knows"),
        (VIEW, "aten::view"),
        ((), "no"),
    ):
        with pytest.raises(ValueError, match=rf"{name}[^\n]*: no cost is known"):
            BY_HAND.predict(works, A100)
    with pytest.raises(ValueError, match="H300"):
        BY_HAND.predict(SMALL, "NVIDIA H300")


def test_many_are_predicted_in_order_each_as_it_is_alone():
    works = [(SMALL,), (EXP,), (UNKNOWN,), (LARGE,), (SMALL,), (VIEW,), (), (SMALL, EXP), (EXP,), (ADD, VIEW)]
    found = BY_HAND.predict_many(works, "A100-SXM4-80GB")
    assert [each is None for each in found] == [False, False, True, False, False, True, True, False, False, False]
    for ops, estimate in zip(works, found, strict=True):
        if estimate is not None:
            alone = BY_HAND.predict(ops, A100)
            assert estimate == alone
    assert found[0] is found[4]  # asked once
    assert BY_HAND.predict_many([], A100) == []
    assert BY_HAND.predict_many([[SMALL]], A100) == [found[0]]  # lists do
    with pytest.raises(ValueError, match="H300"):
        BY_HAND.predict_many([], "NVIDIA H300")


def test_many_are_told_from_one_another_by_all_that_they_are():
    turned = op("aten::mm", {"self": spec((512, 512)), "mat2": spec((512, 512), strides=(1, 512))}, [spec((512, 512))])
    straight = gemm(512, 512, 512, "float32")
    one, other = BY_HAND.predict_many([(straight,), (turned,)], A100)
    assert one == other  # the same by this model, which knows nothing of it, but both are there
    assert one is not other


dimension = st.integers(1, 1 << 18)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(dimension, dimension, dimension), min_size=1, max_size=6), st.sampled_from([A100, H100]))
def test_products_are_predicted_as_ops_are_and_never_beat_the_bound(predictor: Predictor, sizes: list, device):
    m, n, k = np.array(sizes, dtype=np.float64).T
    batch = predictor.predict_products(m, n, k, "fp16", device)
    each = predictor.predict_many([(gemm(*size),) for size in sizes], device)
    for place, estimate in enumerate(each):
        assert isinstance(estimate, Estimate)
        assert batch.time_s[place] == pytest.approx(estimate.time_s)
        assert batch.low_s[place] == pytest.approx(estimate.low_s)
        assert batch.high_s[place] == pytest.approx(estimate.high_s)
        assert batch.bound_s[place] == pytest.approx(estimate.bound_s)
        assert batch.extrapolated[place] == estimate.extrapolated
    assert (batch.bound_s <= batch.time_s).all()
    assert (batch.bound_s * np.exp(FASTEST) <= batch.low_s).all()  # what a cache may hold
    assert (batch.low_s <= batch.time_s).all()
    assert (batch.time_s <= batch.high_s).all()
    assert np.isfinite(batch.high_s).all()


def test_products_by_the_thousand_are_answered_like_a_few(predictor: Predictor):
    rng = np.random.default_rng(0)
    m, n, k = rng.integers(1, 4096, (3, 2500)).astype(float)
    many = predictor.predict_products(m, n, k, "bf16", A100, batch=4)
    few = [predictor.predict_products(m[rows], n[rows], k[rows], "bf16", A100, batch=4.0) for rows in (slice(7), [-1])]
    assert few[0].time_s == pytest.approx(many.time_s[:7], rel=1e-9)
    assert few[1].high_s == pytest.approx(many.high_s[-1:], rel=1e-9)
    with pytest.raises(ValueError, match="positive integers"):
        predictor.predict_products(m, n, np.where(k == k[9], 0, k), "bf16", A100)
    with pytest.raises(ValueError, match="H300"):
        predictor.predict_products(m, n, k, "bf16", "NVIDIA H300")


def test_products_of_no_model_are_typical():
    batch = Predictor.empty().predict_products(np.array([4096.0]), np.array([64.0]), np.array([4096.0]), "fp16", A100)
    assert batch.time_s == pytest.approx(2 * batch.bound_s)
    assert batch.extrapolated.all()


def test_no_op_of_a_gpu_takes_less_than_its_shortest_kernel():
    """One number more is 2 bytes read and 2 written, a picosecond; a chain of ops is as many kernels."""
    assert H100.least_kernel_s == pytest.approx(0.92e-6)
    (tiny,) = Predictor.empty().predict_shape("gemm", [1, 1, 1], "fp16", H100).values()
    assert tiny.low_s == H100.least_kernel_s > 1e3 * tiny.bound_s
    # what nobody measured takes as long as small products in traces do, and no less than the shortest kernel
    assert tiny.time_s == tiny.high_s / 2 == small_kernel_s("gemm", H100) > H100.least_kernel_s
    (unlisted,) = Predictor.empty().predict_shape("gemm", [1, 1, 1], "fp16", A100).values()
    assert unlisted.low_s == SHORTEST_KERNEL_S
    chain = Predictor.empty().predict_shape("RMSlayernorm", {"b": 1, "l": 1, "dim": 64}, "fp16", H100)["fwd"]
    assert chain.time_s >= 5 * H100.least_kernel_s
    on_cpu = replace(H100, kind="cpu")
    (host,) = Predictor.empty().predict_shape("gemm", [1, 1, 1], "fp16", on_cpu).values()
    assert host.time_s < 1e-9


@pytest.mark.parametrize("name", [name for name in registry.names() if not registry.find(name).ranks])
def test_every_operator_has_a_prediction_in_each_direction(name: str):
    operator = registry.find(name)
    shape = {each: operator.defaults.get(each, 512 if each == "dim" else 16) for each in operator.parameters}
    dtype = "fp8" if name == "scaled_mm" else "fp16"
    found = BY_HAND.predict_shape(name, shape, dtype, H100)
    assert tuple(found) == operator.directions


@pytest.mark.parametrize(
    ("function", "shape", "said"),
    [
        ("gemm", {"m": 4, "n": 4}, "gemm needs k"),
        ("gemm", {"m": 4, "n": 4, "k": 4, "z": 4}, "gemm has no parameter z"),
        ("gemm", [1, 2], "gemm needs k"),
        ("gemm", list(range(1, 30)), "not 29 values"),
        ("gemm", {"m": 0, "n": 4, "k": 4}, "gemm: m=0 is too small"),
        ("gemm", {"m": -4, "n": 4, "k": 4}, "gemm: m=-4 is too small"),
        ("gemm", {"m": 4.5, "n": 4, "k": 4}, "must be integers"),
        ("gem", {"m": 4, "n": 4, "k": 4}, 'unknown operator "gem": did you mean gemm'),
    ],
)
def test_wrong_shapes_are_one_clear_line(function: str, shape, said: str):
    with pytest.raises(ValueError, match=said) as caught:
        BY_HAND.predict_shape(function, shape, "fp16", A100)
    assert "\n" not in str(caught.value)


def test_saved_models_predict_the_same(predictor: Predictor, tmp_path: Path):
    loaded = Predictor.load(predictor.save(tmp_path / "deep" / "models"))
    for device in (A100, H100):
        for shape in ([512, 768, 1024], [9999, 31, 7], [1 << 17, 1 << 17, 64]):
            one, other = (each.predict_shape("gemm", shape, "fp16", device) for each in (predictor, loaded))
            assert one == other
    assert loaded.models.keys() == predictor.models.keys()
    assert [path.name[: -len(SUFFIX)].split("-")[0] for path in (tmp_path / "deep" / "models").glob("*.npz")] == [
        "gemm"
    ]
    again = Predictor.load(loaded.save(tmp_path / "deep" / "models"))  # over itself
    assert again.models.keys() == predictor.models.keys()


def test_kinds_whose_names_look_alike_have_files_of_their_own(tmp_path: Path):
    found = ["aten::add", "aten-add", "aten::add_", "a" * 300 + "x", "a" * 300 + "y"]
    saved = Predictor.of([model(expert(A100, 0.5, 0.5, key=key), key=key) for key in found]).save(tmp_path)
    assert len(list(saved.glob("*.npz"))) == len(found)
    loaded = Predictor.load(saved)
    assert all(loaded.model(key) is not None for key in found)
    assert loaded.model("aten::sub") is None


def test_a_folder_without_models_says_what_to_do(tmp_path: Path):
    (tmp_path / "gemm.model.json").write_text("{}")  # of an older version
    for folder in (tmp_path, tmp_path / "none", tmp_path / "gemm.model.json"):
        with pytest.raises(ValueError, match="rooflight fit DATA --out"):
            Predictor.load(folder)


def test_a_file_that_is_no_model_is_told_when_it_is_needed(tmp_path: Path):
    (path,) = BY_HAND.save(tmp_path).glob("*.npz")
    (tmp_path / "manifest.json").unlink()
    good = path.read_bytes()
    other = Predictor.of([model(expert(A100, 1, 1, key="aten::exp"), key="aten::exp")]).save(tmp_path / "other")
    for content, said in (
        (good[: len(good) // 2], "not a model of rooflight fit"),
        (next(other.glob("*.npz")).read_bytes(), "the model of another kind of work: fit it again"),
    ):
        path.write_bytes(content)
        predictor = Predictor.load(tmp_path)
        assert predictor.predict(EXP, A100).source is Source.TYPICAL  # needs no model of products
        for _ in range(2):  # and stays untold only until then
            with pytest.raises(ValueError, match=said) as caught:
                predictor.predict(SMALL, A100)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match=said):
            _ = predictor.models
    path.unlink()
    path.mkdir()  # a folder by that name
    with pytest.raises(ValueError, match="directory") as caught:
        Predictor.load(tmp_path).predict(SMALL, A100)
    assert str(path) in str(caught.value)


def test_lightgbm_is_not_imported_before_it_is_worth_it(predictor: Predictor, tmp_path: Path):
    """Nor needed at all: where it is not installed, numpy does what it does."""
    code = f"""
        import sys
        import numpy as np
        from rooflight.prediction.predictor import Predictor

        loaded = Predictor.load({str(predictor.save(tmp_path))!r})
        assert loaded.models
        few = loaded.predict_products(*np.full((3, 2000), 512.0), "fp16", "A100-SXM4-80GB")
        assert not {{"lightgbm", "torch", "sklearn", "pandas"}} & set(sys.modules), "imported too much"
        sys.modules["lightgbm"] = None
        many = loaded.predict_products(*np.full((3, 3000), 512.0), "fp16", "A100-SXM4-80GB")
        assert set(many.time_s) == set(few.time_s)
        assert sys.modules["lightgbm"] is None
        print(many.time_s[0])
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(predictor.predict(SMALL, A100).time_s)


def microseconds(folder: Path, predictor: Predictor | None = None, **changes: object) -> float:
    """estimate-train-time's call, with what its example says."""
    predictor = predictor or Predictor.empty()
    arguments: dict = {
        "gpu_name": A100_FILE,
        "function": "gemm",
        "precision": "fp16",
        "propagation": "step",
        "shape": [1024, 1024, 1024],
        "model_dict": predictor.operator_dict,
        "config_folder": "path/to/config",
        "data_folder": folder,
    }
    return predictor.predict_operator(**{**arguments, **changes})


def test_estimate_train_times_call_learns_on_first_need(tmp_path: Path):
    write_table(tmp_path)
    predictor = Predictor.empty()
    first = microseconds(tmp_path, predictor)
    assert first == pytest.approx(2 * 2 * 1024**3 / 312e12 * 1e6, rel=0.02)  # twice the bound
    ((key, learned),) = predictor.operator_dict.items()
    assert key == (A100_FILE, "gemm", "fp16")
    assert microseconds(tmp_path, predictor) == first
    assert list(predictor.operator_dict.values()) == [learned]
    assert microseconds(tmp_path, predictor, precision="float16") == first  # precisions have several names
    assert microseconds(tmp_path, predictor, propagation="dur") == first  # as the column of the samples is called
    by_place = (A100_FILE, "gemm", "fp16", "dur", [1024, 1024, 1024], predictor.operator_dict, "path/to/config")
    assert predictor.predict_operator(*by_place, tmp_path) == first
    mine: dict = {}
    assert microseconds(tmp_path, predictor, model_dict=mine) == first
    assert len(mine) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"propagation": "bwd"}, "it has step"),
        ({"function": "softmax", "shape": [1, 4, 16, 1024]}, "no samples of softmax"),
        ({"function": "nothing"}, "nothing"),
        ({"gpu_name": "NVIDIA H300"}, "H300"),
        ({"gpu_name": H100_FILE}, f"no samples of gemm in fp16 on {H100_FILE}"),
        ({"precision": "fp32"}, "no samples of gemm in fp32"),
        ({"precision": "fp1"}, "fp1"),
        ({"precision": "fp17"}, "fp17"),
        ({"shape": [1, 2]}, "needs k"),
        ({"shape": [0, 2, 3]}, "m=0 is too small"),
        ({"data_folder": "/nowhere/at/all"}, "there is no /nowhere/at/all"),
        # log_softmax_rows ends as it does, and was measured instead
        ({"function": "softmax_rows", "shape": [4096, 1024], "propagation": "fwd"}, "no samples of softmax_rows"),
        ({"gpu_name": H100_FILE, "precision": "fp32"}, "too few"),
    ],
)
def test_estimate_train_times_call_refuses_in_one_line(changes: dict, said: str, tmp_path: Path):
    write_table(tmp_path)
    write_table(tmp_path, "log_softmax_rows", VECTORS)
    write_table(tmp_path, shapes=GRID[: LEAST_ROWS - 1], device=H100_FILE, precision="fp32")
    with pytest.raises(ValueError, match=said) as caught:
        microseconds(tmp_path, **changes)
    assert "\n" not in str(caught.value)


def test_estimate_train_times_call_learns_from_that_operator_on_that_device_alone(tmp_path: Path):
    write_table(tmp_path)
    write_table(tmp_path, slowdown=5.0, device=H100_FILE)
    write_table(tmp_path, slowdown=9.0, precision="fp32")
    products = [(2, m, n, k) for m, n, k in GRID]
    write_table(tmp_path, "batched_mm", products, slowdown=7.0)  # products as well
    predictor = Predictor.empty()
    assert microseconds(tmp_path, predictor) == pytest.approx(2 * 2 * 1024**3 / 312e12 * 1e6, rel=0.02)
    (learned,) = predictor.operator_dict.values()
    assert learned.models[PRODUCT_KEY].rows == len(GRID)


def test_estimate_train_times_call_without_data_uses_the_models_that_there_are():
    asked = {"gpu_name": A100_FILE, "function": "gemm", "precision": "fp16", "propagation": "step"}
    found = BY_HAND.predict_operator(**asked, shape=[512, 512, 512])
    assert found == pytest.approx(BY_HAND.predict(SMALL, A100).time_s * 1e6)
    assert BY_HAND.operator_dict == {}


def test_estimate_train_times_call_has_both_directions(tmp_path: Path):
    write_table(tmp_path, "gelu_rows", VECTORS, slowdown=3.0)
    asked = {"function": "gelu_rows", "shape": [4096, 4096]}
    times = [microseconds(tmp_path, **asked, propagation=direction) for direction in ("fwd", "bwd")]
    # a tensor read and one written, two read and one written; 4096^2 numbers of 2 bytes at 2039 GB/s
    assert times == pytest.approx([3 * tensors * 4096**2 * 2 / 2039e9 * 1e6 for tensors in (2, 3)], rel=0.05)


@pytest.mark.parametrize("taught", [True, False], ids=["misaligned and aligned", "aligned alone"])
def test_large_misaligned_products_take_as_long_as_smaller_ones_for_their_bound(taught):
    names = names_of(PRODUCT_KEY)
    place, count = names.index("align bytes"), len(names)
    low, steady = np.array([-109.0, *[-100.0] * (count - 1)]), steady_features(PRODUCT_KEY)
    low[place] = 1.0 if taught else 4.0
    # ten times its bound where rows are not aligned to 16 bytes, twice where they are
    learners = {
        "main": stump(3.5, log(10), log(2), feature=place, features=count),
        "beyond": stump(3.5, log(10), log(2), feature=steady.index(place), features=len(steady)),
    }
    known = Predictor.of([model(replace(expert(H100, 0.0, 0.0, low=low), **learners))])
    aligned, odd = known.predict(gemm(8192, 50304, 8192), H100), known.predict(gemm(8192, 50257, 8192), H100)
    assert odd.extrapolated
    assert aligned.time_s / aligned.bound_s == pytest.approx(2, rel=0.1)
    assert odd.time_s / odd.bound_s == pytest.approx(10 if taught else 2, rel=0.1)


def test_work_that_is_aligned_worse_than_all_that_was_measured_is_not_known():
    names = names_of(PRODUCT_KEY)
    low = np.array([-109.0, *[-100.0] * (len(names) - 1)])
    low[names.index("align bytes")] = 4.0
    known = Predictor.of([model(expert(H100, 0.0, 0.0, low=low))])
    assert not known.predict(gemm(1024, 1024, 1024), H100).extrapolated
    assert known.predict(gemm(1024, 1025, 1024), H100).extrapolated
