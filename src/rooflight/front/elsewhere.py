"""A step of a script on devices that are not there: what was recorded once, answered for each of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import structs

from rooflight.diagnosis.diagnose import diagnose
from rooflight.front.device import find_device
from rooflight.front.on_devices import NO_PRICES, devices_table, prices_of, ranking, rows_of
from rooflight.front.sessions import analyze, predicted
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.predictor import Predictor
from rooflight.records.archive import load
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import STEP
from rooflight.records.report import Cell, Report, Table, table
from rooflight.records.session import Session
from rooflight.records.timeline import Assumed, OnDevice, Run, StepKind, VirtualRun
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.memory.texts import during, growth_text, memory_shortage, missed_text
from rooflight.roofline.memory.use import MemoryUse
from rooflight.roofline.network import Collective
from rooflight.roofline.tables.findings import answer
from rooflight.roofline.tables.report import report_of
from rooflight.roofline.tables.run import calls_of, in_brief
from rooflight.sources.capture.own_code import is_users
from rooflight.sources.capture.run.elsewhere import NOT_HERE, Program, Wanted, seen_of

_FEW: Final = 5
_SIGNALS: Final = {9: ", as where memory runs out", 11: ", as where it reads at an address of the device"}


def run(
    script: str | Path, args: Sequence[str] = (), *, on: str | Sequence[str], gpus: int = 1, nodes: int = 1,
    rank: int = 0, skip: int = 2, module: bool = False, save: str | Path | None = None, price: Sequence[str] = (),
) -> Report:  # fmt: skip
    """Run a script, or a ``module``, that says ``cuda`` on GPUs that are not here, as ``rooflight run --on`` does, and
    report what one of its steps would take on each device of ``on``. It runs in a process of its own, with your rights.

    The step recorded is the one after ``skip`` others, on ``rank`` of ``gpus`` on each of ``nodes`` nodes. ``save``:
    where the session is kept (``rl.load``). ``price``: dollars an hour of one GPU, as ``H100-SXM5-80GB=2.5``.

    Raises ValueError for devices, prices and ranks that cannot be, RuntimeError for a script that left no session.
    """
    names = on.split(",") if isinstance(on, str) else on
    devices = [find_device(name.strip()) for name in names]
    prices = prices_of(price, devices)
    program = Program(target=str(script), arguments=tuple(args), module=module, skip=skip)
    with TemporaryDirectory() as folder:
        saved = Path(save) if save is not None else Path(folder) / "run.session"
        session = record_elsewhere(program, devices, saved, gpus=gpus, nodes=nodes, rank=rank)
    return report_elsewhere(session, devices, str(save or ""), prices)


def record_elsewhere(
    program: Program, devices: Sequence[DeviceSpec], saved: Path, *, gpus: int = 1, nodes: int = 1, rank: int = 0,
    loud: bool = False,
) -> Session:  # fmt: skip
    """Run a program in a child that sees the first of the devices, and load what it recorded into ``saved``.

    Raises ValueError for devices and ranks that cannot be, RuntimeError for a child that left no session.
    """
    seen = [seen_of(device) for device in devices]
    if not 0 <= rank < gpus * nodes:
        raise ValueError(f"--rank {rank}: there are {gpus * nodes}, from 0")
    names = tuple(device.name for device in devices)
    wanted = Wanted(program=program, devices=names, seen=seen[0], gpus=gpus, nodes=nodes, rank=rank, saved=str(saved),
                    loud=loud)  # fmt: skip
    saved.unlink(missing_ok=True)
    code = _wait(wanted.command())
    if not saved.is_file():
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}{_SIGNALS.get(-code, '')}"
        where = _line_of(wanted.faults) or "its output above"
        raise RuntimeError(f"{program.target} {how}, and left no session: see {where}")
    return load(saved)


def _line_of(faults: Path) -> str:
    """The line of the script at which its process died, as it wrote in ``faults``, which are removed."""
    text = faults.read_text() if faults.exists() else ""
    faults.unlink(missing_ok=True)
    found = (each for each in re.findall(r'File "(.*)", line (\d+)', text) if is_users(each[0]))
    return next((f"{Path(file).name}:{line}" for file, line in found), "")


def _wait(command: Sequence[str]) -> int:
    """Wait for the child. Ctrl-C reaches it too: it then saves what it has."""
    with subprocess.Popen(command) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue


def report_elsewhere(
    session: Session, devices: Sequence[DeviceSpec], path: str, prices: Mapping[str, float] = NO_PRICES
) -> Report:
    """The report of a session that ``rooflight run --on`` recorded, led by what its step takes on each device."""
    run = session.run
    assert run is not None
    assert run.virtual is not None
    if run.step is None or not len(session) or session.environment.get("device_kind") != "meta":
        report = replace(report_of(analyze(session, devices[0].name)), conclusion=_nothing(run, devices))
        return replace(
            report, brief=replace(report, facts=(), tables=tuple(_assumed(run.assumed)), series=(), notes=())
        )
    predictor = Predictor()
    analyses = [predicted(analyze(session, device.name), predictor) for device in devices]
    rows = rows_of(analyses, run.virtual, predictor, prices)
    first = analyses[0].of(replace(session, run=replace(run, on=rows)))
    found = diagnose(first)
    report = in_brief(report_of(first, found=found), path, " --predict")
    assert report.brief is not None
    tables = (devices_table(rows), *_exchange(first), *report.brief.tables, *_assumed(run.assumed))
    eagerly = "The account and the findings are of its ops one by one, as eager mode runs them."
    notes = (*[eagerly] * bool(rows[0].compiled_s), *report.brief.notes, *_notes(run, run.virtual))
    brief = replace(
        report.brief,
        tables=tables,
        notes=notes,
        conclusion=" ".join(filter(None, (conclusion(run, rows, analyses), ranking(rows), answer(found)))),
    )
    return replace(report, brief=brief, conclusion=brief.conclusion, tables=(devices_table(rows), *report.tables))


def conclusion(run: Run, rows: Sequence[OnDevice], analyses: Sequence[Analysis]) -> str:
    """How long a step takes on each device, and whether it fits."""
    assert run.step is not None
    found = [f"A step is {calls_of(run.step)} ({run.step.at})."] if run.step.at else []
    if run.exit_code and run.step.count == 1 and run.step.kind in (StepKind.MODULE, StepKind.BACKWARD):
        ended = f"{run.script} ended with exit code {run.exit_code} in its first step"
        why = f" {run.error}." if run.error else ""
        found = [f"{ended}: what follows is of a part of it.{why}"]
    for number, (row, analysis) in enumerate(zip(rows, analyses, strict=True)):
        time_s = row.time_s
        many = f"{row.gpus} " if row.gpus > 1 else ""
        bound = f"at least {Quantity(row.bound_s, 's')}"
        how = "compiled " if row.compiled_s else ""
        text = f"On {many}{row.device} it would take about {Quantity(time_s, 's')} {how}({bound})" if time_s else (
            f"On {many}{row.device} it takes {bound}")  # fmt: skip
        memory = structs.replace(analysis.memory, peak_bytes=row.memory_bytes, phase=row.phase)
        shortage = memory_shortage(memory, row.device)
        fits = f" and needs {Quantity(row.memory_bytes, 'B')} of memory, which fits."
        found.append(f"{text}. {shortage}{_nearest_change(memory, row.gpus)}" if shortage else text + fits)
        found += [] if number else filter(None, [growth_text(memory, row.device)])
    return " ".join(found)


def _nearest_change(memory: MemoryUse, gpus: int) -> str:
    """What would make a step fit: the cheapest change that suffices, a smaller batch, or weights and what belongs to
    them on more GPUs.
    """
    kinds = memory.by_kind
    if memory.phase != STEP:
        at = f", {memory.rows[0].where.at}" if memory.rows and memory.rows[0].where.line else ""
        return f" The most is held {during(memory.phase)}{at}."
    enough = [each for each in memory.savings if each.peak_bytes <= (memory.device_bytes or 0)]
    if enough:
        best = min(enough, key=lambda each: (each.flops > 0 or each.moved_bytes > 0, each.peak_bytes))
        return f" With {best.change} it would fit, in {Quantity(best.peak_bytes, 'B')}."
    if memory.batch_factor is not None and 0 < memory.batch_factor < 1:
        return f" {1 / memory.batch_factor:.1f} times fewer tokens or images a step, or checkpoints, would fit."
    states = kinds.parameter + kinds.gradient + kinds.optimizer_state
    other, capacity = memory.peak_bytes - states, memory.device_bytes or 0
    if states < capacity:
        return f" {other / (capacity - states):.1f} times fewer tokens or images a step, or checkpoints, would fit."
    if other < capacity:
        many = gpus * -(-states // (capacity - other))
        return f" Weights, gradients and optimizer state sharded over {many} GPUs (FSDP) would fit."
    return " Fewer tokens or images a step, and states sharded over more GPUs (FSDP), would fit."


def _nothing(run: Run, devices: Sequence[DeviceSpec]) -> str:
    """Why nothing is said of the devices."""
    ended = f" and ended with exit code {run.exit_code}" if run.exit_code else ""
    absent = (each for each in run.assumed if each.answer == NOT_HERE)
    missing = next((each for each in absent if each.what.partition(",")[0] in (run.error or each.what)), None)
    if missing is not None and run.exit_code:
        return (
            f"{run.script} needs {missing.what} ({missing.where.at}): it{ended[4:]} before a step was found. "
            "Let it go another way where that import fails."
        )
    used = run.memory is not None and run.memory.phases
    if run.step is not None and not run.exit_code and not used:
        names = " or ".join(device.name for device in devices)
        return f"{run.script} put nothing on the GPU: its steps run on the CPU, and would take no less on {names}."
    if run.error:
        return f"No step was found in {run.script}, which{ended[4:]}: {run.error}."
    seen = "found" if run.step is None else "recorded"
    return f"No step was {seen} in {run.script}: it made {run.seen}{ended}."


def _exchange(analysis: Analysis) -> Iterator[Table]:
    found = analysis.communication.collectives[:_FEW]
    if found:
        yield table(
            "exchanged",
            "Exchanged in a step",
            found,
            ("collective", "", lambda each: str(each.kind)),
            ("ranks", "", lambda each: each.group_size),
            ("group", "", _group),
            ("calls", "", lambda each: each.calls),
            ("payload", "B", lambda each: each.payload_bytes),
            ("sent", "B", lambda each: each.bytes_sent),
            ("bound", "s", lambda each: each.bound_s),
        )


def _group(each: Collective) -> Cell:
    return each.group_description or None


def _assumed(assumed: Sequence[Assumed]) -> Iterator[Table]:
    if assumed:
        yield table(
            "assumed",
            "Answers assumed for what only the device knows (the script went the way that they say)",
            assumed[:_FEW],
            ("what", "", lambda each: each.what),
            ("answer", "", lambda each: each.answer),
            ("times", "", lambda each: each.times),
            ("where", "", lambda each: each.where.at),
        )


def _notes(run: Run, virtual: VirtualRun) -> Iterator[str]:
    yield from filter(None, [missed_text(run)])
    more = len(run.assumed) - _FEW
    if more > 0:
        yield f"{count_of(more, 'other answer')} were assumed too: --json has all."
    if virtual.compiled:
        times = count_of(virtual.compiled, "time")
        yield f"torch.compile was called {times}: the program was recorded as it is written."
