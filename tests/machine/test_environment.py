"""What a measurement ran on: enough to explain a number, nothing that tells who or where."""

import getpass
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from rooflight.hardware.machine import environment
from rooflight.hardware.machine.hardware import Cache, data_caches, memory_bytes, usable_cores
from rooflight.records.dtypes import FLOAT32_DEFAULTS, float32_fact


def write_cache(root: Path, core: int, index: int, fields: str) -> None:
    folder = root / f"cpu{core}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    names = ("level", "type", "size", "shared_cpu_list")
    for name, text in zip(names, fields.split(" "), strict=True):
        (folder / name).write_text(text + "\n")


@pytest.fixture
def two_cores(tmp_path):
    for core in (0, 1):
        write_cache(tmp_path, core, 0, f"1 Data 48K {core}")
        write_cache(tmp_path, core, 1, f"1 Instruction 32K {core}")
        write_cache(tmp_path, core, 2, f"2 Unified 2048K {core}")
        write_cache(tmp_path, core, 3, "3 Unified 32M 0-1")
    return tmp_path


def test_private_caches_add_up_and_shared_ones_do_not(two_cores):
    l1, l2, l3 = data_caches((0, 1), root=two_cores)
    assert (l1.name, l2.name, l3.name) == ("L1", "L2", "L3")
    assert l1.capacity_bytes(2) == 2 * 48 * 1024
    assert l2.capacity_bytes(2) == 2 * 2048 * 1024
    assert l3.capacity_bytes(2) == 32 << 20
    assert l3.share_bytes(2) == 16 << 20


def test_fewer_threads_than_cores_fill_fewer_caches(two_cores):
    l1, _, l3 = data_caches((0, 1), root=two_cores)
    assert l1.capacity_bytes(1) == 48 * 1024
    assert l3.capacity_bytes(1) == 32 << 20


def test_more_threads_than_cores_have_no_more_cache():
    cache = Cache(name="L1", instance_bytes=1000, instance_count=2)
    assert cache.capacity_bytes(8) == 2000
    assert cache.share_bytes(8) == 250


def test_a_system_that_hides_its_caches_has_none(tmp_path):
    assert data_caches((0, 1), root=tmp_path) == ()
    write_cache(tmp_path, 0, 0, "1 Data  0")
    assert data_caches((0,), root=tmp_path) == ()


def test_this_machine_has_cores_and_memory():
    assert usable_cores()
    memory = memory_bytes()
    assert memory is None or memory > 1 << 20


def test_facts_do_not_tell_who_or_where():
    facts = environment.describe()
    words = " ".join([*facts, *facts.values()])
    for private in {platform.node(), str(Path.cwd()), str(Path.home()), sys.prefix} - {"/", ""}:
        assert private not in words
    if getpass.getuser() not in ("root", "user"):
        assert getpass.getuser() not in words
    assert {"cpu", "cores_usable", "os", "python", "device_kind", "fingerprint"} <= set(facts)
    assert all(isinstance(value, str) and value for value in facts.values())


def test_torch_settings_are_told():
    torch = pytest.importorskip("torch")
    facts = environment.describe("cpu")
    assert facts["torch"] == torch.__version__
    assert facts["torch_threads"] == str(torch.get_num_threads())
    assert facts["float32_matmul_precision"] == torch.get_float32_matmul_precision()


def float32_facts():
    return {library: environment.describe("cpu")[float32_fact(library)] for library in FLOAT32_DEFAULTS}


def test_float32_settings_are_told_by_whichever_of_torch_s_ways_they_were_set():
    torch = pytest.importorskip("torch")
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    assert float32_facts() == FLOAT32_DEFAULTS
    # torch.testing, which other tests import, forbids to set the flags but in this context
    with torch.backends.__allow_nonbracketed_mutation():
        try:
            torch.set_float32_matmul_precision("medium")
            assert float32_facts() == {**FLOAT32_DEFAULTS, "cuda.matmul": "tf32", "mkldnn.matmul": "bf16"}
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False
            assert float32_facts() == {**FLOAT32_DEFAULTS, "cudnn.conv": "ieee", "cudnn.rnn": "ieee"}
        finally:
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.allow_tf32 = cudnn
    assert float32_facts() == FLOAT32_DEFAULTS


def test_float32_settings_of_torch_s_new_kind_are_told():
    pytest.importorskip("torch")  # in a process of its own: torch refuses to read the old switches afterwards
    code = (
        "import torch; torch.backends.cudnn.conv.fp32_precision = 'ieee';"
        "torch.backends.mkldnn.conv.fp32_precision = 'bf16'; torch.backends.cuda.matmul.fp32_precision = 'tf32';"
        "from rooflight.hardware.machine.environment import describe; facts = describe('cpu');"
        "print(*[facts[f'torch.backends.{name}.fp32_precision'] for name in "
        "('cuda.matmul', 'cudnn.conv', 'cudnn.rnn', 'mkldnn.conv')], facts['float32_matmul_precision'], sep=';')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == "tf32;ieee;tf32;bf16;set through fp32_precision"


def test_the_fingerprint_is_stable_across_processes():
    pytest.importorskip("torch")
    code = "from rooflight.hardware.machine.environment import fingerprint; print(fingerprint('cpu'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == environment.fingerprint("cpu")
    assert len(environment.fingerprint("cpu")) == 12


def test_a_process_on_one_core_and_one_thread_is_on_the_same_machine():
    pytest.importorskip("torch")
    code = (
        "import os, torch; os.sched_setaffinity(0, {0}); torch.set_num_threads(1)\n"
        "from rooflight.hardware.machine.environment import describe; print(describe('cpu')['fingerprint'])"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == environment.fingerprint("cpu")


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match='unknown kind of device "tpu"'):
        environment.fingerprint("tpu")


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(environment, "cuda_name", lambda: None)
    with pytest.raises(ValueError, match="no CUDA device"):
        environment.fingerprint("cuda")


def test_importing_the_room_does_not_import_torch():
    code = "import sys, rooflight.machine.calibration; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
