"""What ``rooflight`` and its namespaces offer, and what importing it costs."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import rooflight as rl
from rooflight.records.package import lazy_exports

ALWAYS = [
    *("analyze", "calibrate", "current_device", "devices", "find_device", "formula", "load", "measure", "phase"),
    *("record", "Analysis", "OpCost", "OpSignature", "Predictor", "Session", "Uncosted"),
]
OF_TRACKING = [
    *("FunctionalPatcher", "LayerSOLHooks", "OpRecord", "OpType", "TensorShape", "get_current_device_spec"),
    *("initialize_sol", "log_training_sol", "sol_nvtx_range", "sol_profile"),
]


def python(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_every_name_can_be_imported_from_rooflight():
    for name in (*ALWAYS, *OF_TRACKING):
        assert getattr(rl, name) is not None
        assert name in dir(rl)


def test_the_version_is_that_of_the_installed_package():
    assert rl.__version__ == importlib.metadata.version("rooflight")
    assert "__version__" in dir(rl)
    hidden = (
        "import importlib.metadata as m, rooflight as rl\n"
        "def version(name): raise m.PackageNotFoundError(name)\n"
        "m.version = version; print(rl.__version__)"
    )
    assert python(hidden) == "0+unknown\n"  # a folder of sources on the path, not installed


def test_what_is_for_training_loops_lives_in_tracking():
    assert set(OF_TRACKING) <= set(rl.tracking.__all__)
    assert not set(OF_TRACKING) & set(rl.__all__)
    for name in rl.tracking.__all__:
        assert getattr(rl.tracking, name) is not None
        assert getattr(rl, name, getattr(rl.tracking, name)) is getattr(rl.tracking, name)
    with pytest.raises(AttributeError, match=r"module 'rooflight.tracking' has no attribute 'nothing'"):
        rl.tracking.nothing  # noqa: B018


def test_importing_it_imports_next_to_nothing():
    program = (
        "import sys; import rooflight; import rooflight.tracking\n"
        "heavy = {'torch', 'numpy', 'msgspec', 'typer', 'rich'} & set(sys.modules)\n"
        "from rooflight import OpRecord, Predictor, analyze, find_device, load\n"
        "print(sorted(heavy), 'torch' in sys.modules)"
    )
    assert python(program) == "[] False\n"


@pytest.mark.parametrize("name", ["record", "measure", "LayerSOLHooks", "initialize_sol", "tracking.sol_profile"])
def test_a_name_that_needs_torch_says_what_to_install(name):
    program = (
        "import sys; sys.modules['torch'] = None; import rooflight as rl\n"
        f"try: rl.{name}\n"
        "except ImportError as error: print(error.name, error)"
    )
    said = python(program)
    assert said.startswith("torch rooflight.")
    assert said.endswith(f'{name.rpartition(".")[2]} needs torch: pip install "rooflight[torch]"\n')


def test_calibrating_without_torch_says_what_to_install_before_it_begins(tmp_path):
    program = (
        f"import sys, os; sys.modules['torch'] = None; os.environ['ROOFLIGHT_CACHE'] = {str(tmp_path)!r}\n"
        "import rooflight as rl\n"
        "for call in (rl.calibrate, rl.current_device):\n"
        "    try: call('cpu', progress=print)\n"
        "    except ImportError as error: print(error)"
    )
    assert python(program) == 2 * 'calibrating this machine needs torch: pip install "rooflight[torch]"\n'


def test_what_needs_no_torch_is_there_without_it():
    program = (
        "import sys; sys.modules['torch'] = None; import rooflight as rl\n"
        "torch = {'as_on_gpu', 'record', 'measure', 'read_trace', 'explain', 'hot', 'hot_report'}\n"
        "[getattr(rl, name) for name in set(rl.__all__) - torch]"
    )
    assert python(program) == ""


def test_a_namespace_is_there_without_being_imported():
    assert python("import rooflight as rl; print(bool(rl.tracking.log_training_sol), bool(rl.devices.get))") == (
        "True True\n"
    )


ROOT = Path(__file__).parents[2]
PAGES = [path for kind in ("README.md", "docs/**/*.md", "docs/**/*.csv", "examples/*.py") for path in ROOT.glob(kind)]
NAME = re.compile(r"(?<!_)\brooflight(?:\.[a-zA-Z_]\w*)+\b(?![-/])")  # but of schemas, which have a version
DOCUMENTED = sorted({name for page in PAGES for name in NAME.findall(page.read_text())})
GROUPS = {"rooflight.formulas", "rooflight.operators", "rooflight.sources", "rooflight.renderers"}


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name not in GROUPS])
def test_each_documented_name_is_there(name):
    """A module, or what a module has; also where the room lies in a wing that the name leaves out."""
    module, _, attribute = name.rpartition(".")
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError:
        found = getattr(importlib.import_module(module), attribute)
    assert found is not None


def test_a_room_has_one_copy_under_both_names():
    program = (
        "import rooflight, rooflight.devices\n"
        "import rooflight.inference.engines.mapping as short\n"
        "import rooflight.studies.inference.engines.mapping as whole\n"
        "from rooflight.devices.spec import DeviceSpec; from rooflight.hardware.devices import spec\n"
        "print(short is whole, DeviceSpec is spec.DeviceSpec, rooflight.devices is rooflight.hardware.devices)\n"
        "import rooflight.hardware.network.algorithms as whole, rooflight.network.algorithms as short\n"
        "print(short is whole)\n"
    )
    assert python(program) == "True True True\nTrue\n"


@pytest.mark.parametrize("name", ["rooflight.devices.nothing", "rooflight.nothing", "rooflight.tracking.nothing.more"])
def test_what_is_not_behind_a_door_is_said_by_the_name_that_was_written(name):
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name.removesuffix('.more')}'"):
        importlib.import_module(name)


def test_the_house_itself_does_not_use_doors():
    files = sorted((ROOT / "src").rglob("*.py"))
    door = re.compile(rf"^\s*(from|import) rooflight\.({'|'.join(rl._WINGS)})\b", re.MULTILINE)
    assert [path for path in files if door.search(path.read_text())] == []


def test_a_name_is_looked_up_once(monkeypatch):
    package, home = types.ModuleType("a_package"), types.ModuleType("a_home")
    home.name = object()
    monkeypatch.setitem(sys.modules, "a_package", package)
    monkeypatch.setitem(sys.modules, "a_home", home)
    find, listed = lazy_exports("a_package", {"name": "a_home"})
    assert "name" in listed()
    assert "name" not in vars(package)
    assert find("name") is package.name is home.name


def test_the_predictor_needs_no_arguments():
    gemm = {"m": 1024, "n": 1024, "k": 1024}
    estimates = rl.Predictor().predict_shape("gemm", gemm, "fp16", rl.devices.get("A100-SXM4-80GB"))
    assert all(estimate.time_s >= estimate.bound_s > 0 for estimate in estimates.values())
