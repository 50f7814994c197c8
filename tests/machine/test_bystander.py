"""What other programs took of the CPU: exact with a reader of our own, and once with a real busy program."""

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.hardware.machine import cpu_load as bystander
from rooflight.hardware.machine.cpu_load import Bystander, CpuTime
from rooflight.records.measurement import BUSY_SHARE

SECONDS = st.floats(min_value=0, max_value=1e6, allow_nan=False)


def watched(start: CpuTime | None, end: CpuTime | None) -> float | None:
    moments = iter((start, end))
    return Bystander(lambda: next(moments)).others()


def moment(wall_s: float, own_s: float, all_s: float, tick_s: float = 0.0) -> CpuTime:
    return CpuTime(wall_s=wall_s, own_s=own_s, all_s=all_s, cores=4, tick_s=tick_s)


def test_others_have_what_we_did_not_take():
    # 10 s on 4 cores are 40 s of CPU. All took 26 s, we 12 s of it: others 14 / 40 = 35 %
    assert watched(moment(100, 5, 50), moment(110, 17, 76)) == pytest.approx(0.35)


def test_the_ticks_that_are_unsure_are_nobodys():
    # 0.1 s on 4 cores: all took 0.15 s, we 0.1 s, and two ticks of 0.01 s are unsure: 0.03 / 0.4 = 7.5 %
    assert watched(moment(0, 0, 0), moment(0.1, 0.1, 0.15, tick_s=0.01)) == pytest.approx(0.075)
    # a step of 5 ms cannot be told to have been disturbed by two ticks
    assert watched(moment(0, 0, 0), moment(0.005, 0.005, 0.025, tick_s=0.01)) == 0


@given(SECONDS, SECONDS, SECONDS)
def test_it_is_a_share(wall_s: float, own_s: float, all_s: float):
    found = watched(moment(0, 0, 0), moment(wall_s, own_s, all_s))
    assert (found is None) == (wall_s == 0)
    assert found is None or 0 <= found <= 1


def test_where_the_system_is_silent_nothing_is_known(monkeypatch):
    assert watched(None, moment(1, 1, 1)) is None
    assert watched(moment(1, 1, 1), None) is None
    monkeypatch.setattr(bystander, "usable_cores", lambda: (0, 4096))
    assert bystander.cpu_time() is None


STAT = """cpu  9 9 9 9 9 9 9 9 0 0
cpu0 1 2 3 1000 1000 4 5 6 7 8
cpu1 10 20 30 1000 1000 40 50 60 70 80
cpu2 100 200 300 1000 1000 400 500 600 700 800
intr 5 6
"""


def test_only_our_cores_count_and_idle_is_not_busy():
    assert bystander._busy_ticks(STAT, (0, 2)) == 21 + 2100  # guests, the last two, are in user and nice already
    with pytest.raises(ValueError, match="every core"):
        bystander._busy_ticks(STAT, (0, 3))


BURN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_real_program_beside_us_is_seen():
    """It is given away by its parent, the shell, so that it is not of our family."""
    code = BURN.format(20)
    shell = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 & echo $!', sys.executable, code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    burning = int(shell.stdout)
    try:
        time.sleep(0.1)
        watch = Bystander()
        time.sleep(1.0)
        # it has a core of its own, or its share of those that all fight for
        assert watch.others() > min(0.8 / len(os.sched_getaffinity(0)), BUSY_SHARE)
    finally:
        os.kill(burning, signal.SIGKILL)


def test_what_our_own_processes_take_is_not_taken_by_others():
    before = bystander.cpu_time()
    with subprocess.Popen([sys.executable, "-c", BURN.format(20)]) as child:
        time.sleep(1.0)
        while_it_ran = bystander.cpu_time()
        child.kill()
    after = bystander.cpu_time()
    assert while_it_ran.own_s - before.own_s > 0.1
    assert after.own_s >= while_it_ran.own_s - 3 * after.tick_s  # a process that was waited for is not forgotten
