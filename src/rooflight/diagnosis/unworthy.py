"""What people would try, and what gains nothing here or harms."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rooflight.diagnosis.draft import LEAST, Facts
from rooflight.diagnosis.remedies.kernels import gain_of_layout
from rooflight.records.account import Cause
from rooflight.records.quantity import percent
from rooflight.roofline.findings import NotWorthIt


def not_worth_it(facts: Facts, found: Collection[str]) -> Iterable[NotWorthIt]:
    """Remedies that are often tried and are none of those ``found``, each with the reason."""
    of, account = facts.of, facts.of.analysis.account
    unexplained_s = account.seconds(Cause.UNBOUNDED, Cause.NO_OP, Cause.UNKNOWN)
    if of.source == "bound" or unexplained_s > 0.5 * account.wall_s or not of.analysis.coverage.calls:
        return
    launches = percent(account.seconds(Cause.LAUNCHES) / account.wall_s)
    share = f"less than {percent(LEAST)} of the time"
    if of.on_cpu:
        yield NotWorthIt(id="cuda-graphs", title="CUDA graphs", reason="a CPU has none")
    elif "cuda-graphs" not in found:
        yield NotWorthIt(id="cuda-graphs", title="CUDA graphs", reason=f"launches take {launches} of the time")
    if "compile" not in found and not of.session.compiled:
        yield NotWorthIt(id="compile", title="torch.compile", reason=f"predicted to gain {share}")
    if of.optimizes and "fused-optimizer" not in found:
        yield NotWorthIt(id="fused-optimizer", title="a fused optimizer", reason=f"it would gain {share}")
    if of.on_cpu and "half-on-cpu" not in found and not _has_short_units(facts):
        yield NotWorthIt(id="lower-precision", title="bfloat16", reason="this CPU multiplies float32 as fast")
    if "bigger-batch" not in found:
        yield NotWorthIt(id="bigger-batch", title="a bigger batch", reason="overhead is less than half of the time")
    gain_s = gain_of_layout(facts)
    if "channels-last" not in found and gain_s is not None:
        slower = f"{percent(-gain_s / of.step_s)} slower, predicted: group norms copy each image back"
        reason = slower if gain_s < -LEAST * of.step_s else f"it would gain {share}"
        yield NotWorthIt(id="channels-last", title="channels-last", reason=reason)
    if of.measured and of.on_cpu and account.seconds(Cause.LOADER) < LEAST * account.wall_s:
        yield NotWorthIt(id="loader", title="more loader workers", reason="the step waits for no data")


def _has_short_units(facts: Facts) -> bool:
    device = facts.of.analysis.device
    full, short = device.matrix_peak("float32"), device.matrix_peak("bfloat16")
    return bool(full and short and short > 1.2 * full)
