"""From what was recorded to an analysis: a session, a recording that has just ended, or the sessions of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rooflight.costs.cost import OpCost
from rooflight.diagnosis.diagnose import diagnose
from rooflight.front.device import Progress, find_device, find_what_if, log_progress
from rooflight.front.evidence import with_evidence
from rooflight.front.options import PLAIN, ReadOn, TraceOptions
from rooflight.front.sources import read_session
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.devices.what_if import AS_IT_IS, WhatIf
from rooflight.records.estimate import Estimate, Source
from rooflight.records.quantity import Quantity
from rooflight.records.session import DECODED, PINS, Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.analysis import analyze as analyze_for
from rooflight.roofline.bound import as_it_ran
from rooflight.roofline.channels_last import in_channels_last
from rooflight.roofline.decode_formats import lighter_ops
from rooflight.roofline.host import Host, crossing_s, with_host_scalars
from rooflight.roofline.tables.report import token_time

if TYPE_CHECKING:
    from rooflight.prediction.predictor import Predictor
    from rooflight.roofline.ranks import RankedAnalysis
    from rooflight.sources.capture.record.recorder import record


def analyze(
    session: Session | record | str | PathLike[str],
    device: DeviceSpec | str | PathLike[str] | None = None,
    *,
    target: str = "",
    predictor: Predictor | None = None,
    host: Host | float | None = None,
    progress: Progress = log_progress,
) -> Analysis:
    """Cost a session and bound it for a device: a spec, a name (``"H100-SXM5-80GB"``), "cpu" or "cuda" for what is
    here, or None for the one it was recorded on; ``rooflight.front.device`` explains how each is found, and
    with which roofs.

    In the place of a session can be the recording that has it, once its ``with`` block has ended, or the path of a
    saved session. ``target`` names the program in the report; by default it has the name that was saved with it. A CPU
    that is this machine's and was never calibrated is calibrated now. With a ``predictor``, times are predicted too, as
    ``predicted`` does; the wall time assumes ``host``: seconds per launch, what ``fit_host`` learned of a machine,
    ``Host.of_graph()`` for a step that is replayed from a graph, or None for that of the trace that the session was
    read from, or a typical one.

    Raises ValueError for an unknown device, a damaged file and a host without a predictor, FileNotFoundError for a path
    where no file is, IsADirectoryError for a folder, RuntimeError for a recording that is still open, TypeError for
    anything else.
    """
    if isinstance(session, str | PathLike):
        path = fspath(session)
        session = _saved(path, progress)
        target = target or session.environment.get("target") or Path(path).name
    elif not isinstance(session, Session):
        session = _recorded(session)
    target = target or session.environment.get("target", "")
    if predictor is not None and not hasattr(predictor, "predict_many"):
        raise TypeError(f"predictor is {type(predictor).__name__}: pass rl.Predictor(), or leave it out")
    if host is not None and predictor is None:
        raise ValueError("host: only predictions assume one: pass predictor=rl.Predictor() too")
    analysis = with_evidence(analyze_for(session, find_device(device, session=session, progress=progress), target))
    analysis.diagnosed_by = diagnose
    return analysis if predictor is None else predicted(analysis, predictor, host)


def _saved(path: str, progress: Progress) -> Session:
    wanted = (
        "pass a Session, a recording, or the path of a file that Session.save wrote; "
        "presets and functions are targets of the command rooflight analyze"
    )
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder: {wanted}")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no saved session {path}: {wanted}")
    return read_session(path, progress=progress)


def _recorded(recording: record) -> Session:
    found: object = getattr(recording, "session", None)
    if not isinstance(found, Session):
        raise TypeError(
            f"analyze takes a Session, a recording that has ended, or the path of a saved session, not "
            f"{type(recording).__name__}: with rl.record(model) as recording: ..., then rl.analyze(recording)"
        )
    return found


def predicted(analysis: Analysis, predictor: Predictor, host: Host | float | None = None) -> Analysis:
    """The same analysis with predicted times beside the bounds; each distinct op is predicted once, on its own. The
    wall time is that of a host which issues them one after the other, as ``analyze`` has it. Where none is given it is
    that of the trace that the session was read from, or a typical one.

    Raises ValueError for a model that turns out to be damaged when it is first needed, for seconds per launch that
    cannot be, and for a host beside a CPU, whose ops' times include the host's.
    """
    if host is not None and analysis.device.kind == "cpu":
        raise ValueError(f"host: ops of {analysis.device.name} are measured with what the host spends: leave it out")
    if host is not None and not isinstance(host, Host):
        host = Host.of(host)
    session = analysis.session
    if analysis.device.kind != "cpu":
        session = with_host_scalars(session)
    if host is None and analysis.device.kind != "cpu":
        host = _host_of(session)
    lighter = lighter_ops(analyze_for(session, analysis.device)) if DECODED in session.environment else {}
    counted = np.unique(session.columns.signature[session.counted]).tolist()
    laid = in_channels_last(session.signatures) if analysis.device.kind != "cpu" else session.signatures
    every = (ops[number] for ops in (session.signatures, laid, *lighter.values()) for number in counted)
    estimates = _estimates(dict.fromkeys(every), analysis, predictor)
    own = [estimates.get(op) for op in session.signatures]
    found = analyze_for(session, analysis.device, analysis.target, own, host)
    found.diagnosed_by = analysis.diagnosed_by
    of_formats = {pair: found.predicted_with(ops, [estimates.get(op) for op in ops]) for pair, ops in lighter.items()}
    found.formats = {pair: each for pair, each in of_formats.items() if each is not None}
    if laid is not session.signatures:
        found.channels_last = found.predicted_with(laid, [estimates.get(op) for op in laid])
    return found


def _estimates(
    ops: Iterable[OpSignature], analysis: Analysis, predictor: Predictor
) -> dict[OpSignature, Estimate | None]:
    by_precision: dict[str, list[OpSignature]] = {}
    for op in ops:
        by_precision.setdefault(analysis.float32.precision_of(op), []).append(op)
    found: dict[OpSignature, Estimate | None] = {}
    for precision, each in by_precision.items():
        works = [(op,) for op in each]
        device = as_it_ran(analysis.device, precision)
        found |= zip(each, predictor.predict_many(works, device), strict=True)
        if precision == "tfloat32":
            found |= _as_halves(found, each, analysis, predictor)
    pins = analysis.session.environment.get(PINS) == "yes"
    return {op: _crossing(found[op], crossing_s(op, analysis.device, pins=pins)) for op in found}


def _as_halves(
    found: Mapping[OpSignature, Estimate | None], ops: Iterable[OpSignature], analysis: Analysis, predictor: Predictor
) -> dict[OpSignature, Estimate | None]:
    """Products in TF32, of which most measured tables have none: they take no longer than those of 16 bits, times the
    ratio of the peaks, and of the bytes.
    """
    device = analysis.device
    full, half = device.matrix_peak("tfloat32"), device.matrix_peak("bfloat16")
    costs = dict(zip(analysis.session.signatures, analysis.costs, strict=True))
    products = {op: cost for op, cost in costs.items() if isinstance(cost, OpCost) and cost.matrix_flops}
    mine = [op for op in ops if op in products and found[op] is not None]
    if not mine or not full or not half:
        return {}
    short = [(_in_halves(op),) for op in mine]
    times = max(2.0, half / full)
    known: dict[OpSignature, Estimate | None] = {}
    for op, halved in zip(mine, predictor.predict_many(short, device), strict=True):
        estimate = found[op]
        if estimate is not None and halved is not None and times * halved.on_device.time_s < estimate.on_device.time_s:
            short_s = halved.on_device
            time_s, low_s, high_s = (times * each for each in (short_s.time_s, short_s.low_s, short_s.high_s))
            scaled = replace(short_s, time_s=time_s, low_s=low_s, high_s=high_s)
            known[op] = scaled.with_bound(estimate.bound_s)
    return known


def _in_halves(op: OpSignature) -> OpSignature:
    def short(tensors: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(replace(each, dtype="bfloat16") if each.dtype == "float32" else each for each in tensors)

    return replace(op, inputs=short(op.inputs), outputs=short(op.outputs))


def _crossing(estimate: Estimate | None, link_s: float) -> Estimate | None:
    """The estimate of a copy between host and device, which takes so long on its link."""
    if estimate is None or estimate.time_s >= link_s:
        return estimate
    return replace(estimate, time_s=link_s, low_s=max(estimate.low_s, 0.6 * link_s), source=Source.TYPICAL,
                   high_s=max(estimate.high_s, 1.7 * link_s), launch_s=0.0)  # fmt: skip


def compiled_decode(analysis: Analysis) -> list[str]:
    """What a decode step is predicted to take if it is compiled, and replayed from CUDA graphs: a note, or none."""
    from rooflight.prediction.gain.gain import predicted_gain

    tokens = int(analysis.session.environment.get(DECODED, 0))
    if not tokens or analysis.device.kind != "cuda" or analysis.session.compiled or not analysis.totals.predicted_s:
        return []
    gain = predicted_gain(analysis, "reduce-overhead")
    ends = " to ".join(str(Quantity(gain.eager_s / end, "s")) for end in (gain.speedup_high, gain.speedup_low))
    return [
        f"Compiled by torch.compile(mode='reduce-overhead'), which replays CUDA graphs, the step is predicted to take "
        f"{token_time(gain.compiled_s, tokens)} (90 %: {ends})."
    ]


def _host_of(session: Session) -> Host | None:
    from rooflight.prediction.fit.wall_times import fit_host

    if session.measurement is None or session.measurement.timeline is None:
        return None
    try:
        return fit_host(session)
    except ValueError:
        return None


def analyze_file(
    path: str,
    device: str | None = None,
    *,
    what_if: WhatIf = AS_IT_IS,
    options: TraceOptions = PLAIN,
    progress: Progress = log_progress,
) -> Analysis:
    """A saved session or a trace, analysed. Raises ValueError for a damaged file, options that it does not take, an
    unknown device, and roofs it cannot have.
    """
    session = read_session(path, options, progress)
    spec = find_what_if(device, what_if, session=session, progress=progress)
    return analyze(session, spec, target=session.environment.get("target") or Path(path).name, progress=progress)


def analyze_ranks(
    paths: Sequence[str],
    device: str | None = None,
    *,
    what_if: WhatIf = AS_IT_IS,
    predictor: Predictor | None = None,
    host: Host | float | None = None,
    model: str | None = None,
    read_on: ReadOn | None = None,
    progress: Progress = log_progress,
) -> RankedAnalysis:
    """The ranks of a run, analysed and put together, for a device or the ones they ran on. ``paths`` are a folder of
    traces, or a saved session or a trace per rank; ``read_on`` says where traces are read, ``model`` is the config of
    the model that a serving engine ran.

    Raises ValueError for a path that is neither, and for sessions that do not belong together.
    """
    from rooflight.front.rank_traces import read_ranks
    from rooflight.roofline.ranks import merge

    found = read_ranks(paths, model, read_on or ReadOn(), progress)
    sessions = found.sessions
    progress("putting the ranks together")
    # found once: a device that is to be calibrated first is calibrated for all ranks
    spec = None if device is None else find_device(device, session=sessions[0], progress=progress)
    analyses = [
        analyze(
            session,
            what_if.of(spec or find_device(session=session, progress=progress)),
            target=session.environment.get("target", "a step"),
            predictor=predictor,
            host=host,
            progress=progress,
        )
        for session in sessions
    ]
    return merge(analyses, found.names, found.notes)
