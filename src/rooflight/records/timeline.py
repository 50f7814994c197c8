"""Timeline: what a device did with the time of a measured run, why it was idle, and how much of it belongs to no op.

Run: how a script ran, as ``rooflight run`` watched it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rooflight.records.account import Cause, Place
from rooflight.records.record import ScriptMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWork:
    """Work of a device of one name: how many pieces, and their seconds in sum."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime(NamedWork):
    """A kernel by name, with the op that most of its time belongs to; empty if most of it belongs to none."""

    op: str


class IdleCause(StrEnum):
    """Why a device was idle; ``Idle`` explains each."""

    HOST = "host_late"
    SYNC = "sync"
    PAGEABLE_COPY = "pageable_copy"
    DATA_LOADER = "data_loader"
    RANK = "rank"
    DRIVER = "driver"
    PROFILER = "profiler"
    LAUNCH = "launch"
    QUEUED = "queued"
    UNKNOWN = "unknown"

    @property
    def field(self) -> str:
        """The name of its seconds."""
        return f"{self.value}_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleDetail:
    """How one cause held the device up: ``count`` stretches of ``seconds`` in sum. ``mostly_in``: the op, call or
    annotation that most of it was in, ``mostly_in_s``; empty if there is no such name.
    """

    cause: IdleCause
    seconds: float
    count: int
    median_s: float
    longest_s: float
    mostly_in: str
    mostly_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Seconds in which a device did nothing, by cause; they sum to the idle time.

    No work was queued: ``host_late_s`` the host had other things to do than to launch; ``sync_s`` it had waited for the
    device (a sync, ``.item()``, a blocking copy), until its next launch; ``pageable_copy_s`` the same of a copy from
    pageable memory; ``data_loader_s`` it fetched a batch; ``rank_s`` it waited for another rank in a collective of
    the host; ``driver_s`` it was in a call of the driver that is no launch (allocation, loading of kernels, contexts);
    ``profiler_s`` the profiler worked. ``launch_s``: work was launched while the device was idle, and had not begun.
    ``queued_s``: it had been queued before that, so that no launch held it up. ``unknown_s``: the launch of the work
    that ended it is not in the trace.
    """

    host_late_s: float = 0.0
    sync_s: float = 0.0
    pageable_copy_s: float = 0.0
    data_loader_s: float = 0.0
    rank_s: float = 0.0
    driver_s: float = 0.0
    profiler_s: float = 0.0
    launch_s: float = 0.0
    queued_s: float = 0.0
    unknown_s: float = 0.0

    @property
    def parts(self) -> tuple[tuple[IdleCause, float], ...]:
        """Each cause with its seconds."""
        return tuple((cause, getattr(self, cause.field)) for cause in IdleCause)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Seconds of a stretch of wall time.

    Each is the time in which at least one such piece of work ran, whatever else ran: ``compute_s`` kernels that are no
    collectives, and fills, ``copy_s`` copies, ``communication_s`` collectives. ``exposed_communication_s`` is that in
    which collectives ran and no other kernel, ``exposed_copy_s`` that in which copies ran and no kernel at all.
    ``busy_s`` is compute and both exposed times; ``idle_s`` is the rest of the wall time, and ``idle`` has its causes,
    None where they were not looked for.
    A device is busy where any of its streams is; of several devices the work is counted as if they were one.
    """

    wall_s: float
    busy_s: float
    compute_s: float
    copy_s: float
    communication_s: float
    exposed_communication_s: float
    exposed_copy_s: float
    idle_s: float
    idle: Idle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime(DeviceTime):
    """A step that the profiler marked. It begins when the host begins it or the device has finished the steps before,
    whichever is later, so that steps follow each other without a gap. ``calls`` are its ops; ``in_session``: the
    session has its times. ``without_op_s`` is its work, in sum, that belongs to no op, and ``without_op`` how many
    pieces that is.
    """

    name: str
    calls: int
    in_session: bool
    without_op_s: float
    without_op: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """What the device did for a phase, whenever it did so: the work that was launched in it. ``count`` and ``host_s``
    are those of its annotation on the host, 0 for work outside of annotations. ``idle_s`` is the idle time before its
    work began, by cause in ``idle``; over all phases it sums to the idle time up to the last work.
    """

    name: str
    count: int
    host_s: float
    busy_s: float
    compute_s: float
    copy_s: float
    communication_s: float
    idle_s: float
    idle: Idle


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOp:
    """All calls of an op that launched work: the host's time in them without its waits for the device, the pieces of
    work, and the device's time.
    """

    name: str
    calls: int
    host_s: float
    launched: int
    device_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """How the host launched the device's work. ``short_kernels`` took less than 5 µs each, ``short_s`` in sum.

    ``launches`` are the pieces of work whose call is known; ``graphs`` counts replays of graphs, one call of many
    pieces, ``captures`` those captured; ``compiled``: torch.compile's code ran. ``delay_…_s`` passed from the begin of
    the call to that of the work. ``queue_…`` is how much work was launched and had not begun, over time from the first
    launch to the last begin: ``queue_empty`` is the share of that time in which there was none. ``host_per_launch_s``
    is the host's time in the ops that launched, without its waits for the device, per piece of work.
    """

    kernels: int
    kernels_s: float
    short_kernels: int
    short_s: float
    launches: int
    graphs: int
    captures: int
    compiled: bool
    delay_median_s: float
    delay_p90_s: float
    queue_median: int
    queue_p90: int
    queue_max: int
    queue_empty: float
    host_per_launch_s: float
    ops: tuple[HostOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime(DeviceTime):
    """What the device did in the whole trace, from the begin of its first event to the end of its last, in each of its
    ``steps`` where the profiler marked some, and for each of its ``phases`` where there are several.

    ``launched`` is the time of that work alone which an op launched within the trace, from its first piece to the end
    of its last, as TraceLens counts; None if there is none. ``launches`` is None where no call that launched is known.
    ``kernels`` are all of the run, the longest first.
    """

    steps: tuple[StepTime, ...] = ()
    launched: DeviceTime | None = None
    phases: tuple[PhaseTime, ...] = ()
    idle_details: tuple[IdleDetail, ...] = ()
    launches: Launches | None = None
    kernels: tuple[KernelTime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """Seconds of a step, in the mean, in which no kernel of the device ran because of ``cause``, in ``seen`` steps."""

    cause: Cause
    seconds: float
    seen: int
    where: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(RunTime):
    """A whole run, and which of its work belongs to no op.

    In sum over pieces of work, as ops' times are: ``before_trace_s`` was launched before the trace began,
    ``no_host_op_s`` by no op on the host, ``no_shapes_s`` by ops whose shapes are not known. ``without_op`` is the
    work of the first two by name, the longest first. ``signature_s[i]`` is the work of all ops with signature i, also
    of those in steps that the session has no records of. ``waits``: why the device was idle in a step of the session,
    in the mean, or copied while no kernel ran.
    """

    before_trace_s: float
    no_host_op_s: float
    no_shapes_s: float
    waits: tuple[Waited, ...] = ()
    without_op: tuple[NamedWork, ...] = ()
    signature_s: tuple[float, ...] = ()

    @property
    def without_op_s(self) -> float:
        """Seconds of work, in sum, that belongs to no op."""
        return self.before_trace_s + self.no_host_op_s

    @property
    def step_without_op_s(self) -> float:
        """The same of a step of the session: of several the mean; of the whole run where none is marked."""
        mine = [step.without_op_s for step in self.steps if step.in_session]
        return sum(mine) / len(mine) if mine else self.without_op_s

    @property
    def step_without_op(self) -> int:
        """How many pieces of work that is, rounded up."""
        mine = [step.without_op for step in self.steps if step.in_session]
        return -(-sum(mine) // len(mine)) if mine else sum(work.count for work in self.without_op)


# -- what the host did in a measured step


class Within(StrEnum):
    """What a line of the program waits for or runs: library code, or nothing but itself."""

    ITSELF = ""
    TEXT = "making text"
    FILES = "reading or writing files"
    COPYING = "copying objects"
    OPS = "ops of torch"
    IMPORTING = "importing"
    STARTING = "starting processes"
    COMPILING = "compiling"
    LOADER = "the data loader"
    COLLECTIVES = "collectives"
    OPTIMIZER = "the optimizer"
    CHECKPOINTING = "checkpointing"
    BACKWARD = "backward"
    PROCESS = "another process"
    SAVING = "saving"

    @property
    def is_own(self) -> bool:
        """Whether it is work of the program's own line, with whatever general library."""
        return self in (Within.ITSELF, Within.TEXT, Within.FILES, Within.COPYING)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """Where the host's thread was for ``seconds`` of a step, and ``asleep_s`` of them without using its CPU: at a line
    of the program's own (None: at none), ``within`` such code.
    """

    where: Place | None
    within: Within
    seconds: float
    asleep_s: float
    fetched_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """A function that torch.compile compiled so many ``times``, the last time because of ``reason``. ``limited``: so
    often that it runs eagerly from then on. A graph break has ``times`` 0 and its reason, and no place.
    """

    where: Place | None
    times: int
    reason: str
    limited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """What the host's thread did in a step: its CPU seconds in the timed steps, in the mean, and, sampled in steps of
    their own, the ``lines`` where it was longest. ``after_s``: from the end of the last op to that of the step, in the
    median of profiled ones; None where that is not known. ``compilations`` of this process, if any. ``pages`` that
    were new to the program in a step, and of its CPU seconds those ``fetched_s`` that the system took to give them.
    """

    cpu_s: float
    fetched_s: float = 0.0
    pages: float = 0.0
    lines: tuple[HostLine, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    after_s: float | None = None


# -- the run of a script: what a step was, how long steps took, what lay between


class StepKind(StrEnum):
    """What ends a step: a call of ``Optimizer.step``, of ``backward``, of a module, of a function that was named, or a
    block of ``rooflight.phase``.
    """

    OPTIMIZER = "optimizer"
    BACKWARD = "backward"
    MODULE = "module"
    FUNCTION = "function"
    PHASE = "phase"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """The step of a script: ``count`` of ``name`` ran, called at ``where``, each from what ``begins`` says; in which
    ``processes``, in words, if not in that of the script. ``calls``: how often each of several optimizers stepped;
    ``turns``: how often, in one step, that which steps most often had new gradients. ``recorded`` is the number of the
    recorded step, from 1; None where none could be.
    """

    kind: StepKind
    name: str
    where: Place
    count: int
    begins: str
    recorded: int | None
    calls: tuple[tuple[str, int], ...] = ()
    turns: int = 1
    processes: str = ""

    @property
    def at(self) -> str:
        """``train.py:112 in 2 child processes``."""
        return " ".join(filter(None, (self.where.at, self.processes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What lay between steps: seconds a step, in the mean of those that were not disturbed, and their ``share`` of such
    a step and what lay before it. ``seen``: before how many of how many steps there was some. ``lines``: where the
    host's thread was meanwhile, by samples. ``workers``: processes of the loader, ``inside``: where those were, all
    together. ``again``: the first batch was the same in each epoch.
    """

    name: str
    seconds: float
    share: float
    seen: tuple[int, int] = (0, 0)
    lines: tuple[HostLine, ...] = ()
    workers: int = 0
    inside: tuple[HostLine, ...] = ()
    again: bool = False

    @property
    def each_s(self) -> float:
        """Seconds of one of them."""
        return self.seconds * self.seen[1] / self.seen[0] if self.seen[0] else self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SameSteps:
    """Steps that did the same: ``count`` of ``backwards`` calls of backward and ``nodes`` autograd nodes each, for an
    input of ``elements`` at least (0: not known), and the median of those that were timed. ``recorded``: the recorded
    step is one of them.
    """

    count: int
    backwards: int
    nodes: int
    median_s: float | None
    recorded: bool
    elements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """``what`` only a device would know was answered by ``answer``, so many ``times`` for the line at ``where``."""

    what: str
    answer: str
    times: int
    where: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevice:
    """A step on ``gpus`` of a device: predicted eager and compiled, each nine times in ten from low to high; its bound,
    fused where the program is compiled. ``memory_bytes`` is the peak of one GPU, in ``phase``, predicted where the
    program is compiled, ``eager_memory_bytes`` that of its ops one by one, and ``exchange_bytes`` what it sends.
    ``batch_factor``: how many times the step's batch fits, where the program is not compiled; ``largest_batch`` is
    that, in samples or tokens of one GPU.
    ``evaluation_s`` and ``evaluation_bound_s`` are of a batch of an evaluation beside the steps, if one was recorded.

    ``tokens_per_s`` or ``samples_per_s`` are of all GPUs, None where ranks may share a batch. ``mfu``: matrix FLOPs by
    the peak of their format. Both are of ``time_s``. ``price_per_hour``: of one GPU, in dollars, as the user says.
    """

    device: str
    gpus: int
    step_s: float | None
    step_low_s: float | None
    step_high_s: float | None
    compiled_s: float | None
    compiled_low_s: float | None
    compiled_high_s: float | None
    bound_s: float
    memory_bytes: int
    eager_memory_bytes: int
    fits: bool
    exchange_bytes: int
    phase: str
    batch_factor: float | None = None
    evaluation_s: float | None = None
    evaluation_bound_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    mfu: float | None = None
    largest_batch: int | None = None
    price_per_hour: float | None = None
    dollars_per_million_tokens: float | None = None
    dollars_per_million_samples: float | None = None

    @property
    def time_s(self) -> float | None:
        """Of a step as the program runs it: compiled where it is."""
        return self.compiled_s or self.step_s

    @property
    def dollars_per_million(self) -> float | None:
        """Of tokens or samples, whichever a step is given."""
        tokens = self.dollars_per_million_tokens
        return self.dollars_per_million_samples if tokens is None else tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRun:
    """A run for ``devices``, of which there were none: the first is what the script saw, ``gpus`` of them on each of
    ``nodes`` nodes, of which ``rank`` was recorded. ``compiled`` counts the calls of ``torch.compile``.
    """

    devices: tuple[str, ...]
    gpus: int
    nodes: int
    rank: int
    compiled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of ``script``. ``step`` is None where none was found; ``seen`` then says what was. ``alike`` has the sizes
    of steps, the most frequent first. ``exit_code`` is the script's, None if it is not known, and ``error`` what ended
    it, with its line. Of a run without a step all of it is ``between``, named ``run``. ``virtual``: on which
    devices that were not there it ran; ``on`` is what was found of each, ``assumed`` what was answered for them.
    ``memory``: what the script held, where that was followed.
    """

    script: str
    exit_code: int | None
    error: str = ""
    step: RunStep | None = None
    between: tuple[Between, ...] = ()
    alike: tuple[SameSteps, ...] = ()
    seen: str = ""
    virtual: VirtualRun | None = None
    on: tuple[OnDevice, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    memory: ScriptMemory | None = None
