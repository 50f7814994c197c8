"""Files that are no trace of torch.profiler: what each is, told by its name or its first bytes, and what to give."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Final

ASK: Final = "give a trace that torch.profiler exported"
GZIP: Final = b"\x1f\x8b"

_BEGIN: Final = 1 << 14
_PACKED: Final = "not JSON or gzip"
_MEMORY: Final = "of memory, give what torch.cuda.memory._dump_snapshot('snapshot.pickle') writes"

_BY_NAME: Final = (
    (r"\.(nsys-rep|qdrep)$", "Nsight Systems' own format", "export it with nsys export --type sqlite {name}"),
    (r"\.ncu-rep$", "a report of Nsight Compute, which has counters of single kernels and no steps", ASK),
    (r"\.xplane\.pb$", "an XPlane profile of XLA", ASK),
    (r"\.(perfetto-trace|pftrace)(\.gz)?$", "a Perfetto trace in protobuf", ASK),
    (r"\.csv$", "a table", f"{ASK}, or *_kernel_trace.csv of rocprofv3"),
    (r"tfevents", "an event file of TensorBoard", f"{ASK}, as *.pt.trace.json beside it"),
)
_BY_BEGIN: Final = (
    (rb"\s*\Z", "empty", f"record it again, or {ASK}"),
    (rb"PK\x03\x04.{26}[^/]+/(data|version|code|\.)|\x80\x02\x8a\nl\xfc\x9cF", "a file of torch.save: tensors", ASK),
    (rb"PK\x03\x04(?!.{26}header\.json)", f"a zip archive, {_PACKED}", "unpack it first (unzip)"),
    (rb"\x28\xb5\x2f\xfd", f"compressed by zstd, {_PACKED}", "unpack it first (zstd -d)"),
    (rb"\xfd7zXZ", f"compressed by xz, {_PACKED}", "unpack it first (xz -d)"),
    (rb"BZh", f"compressed by bzip2, {_PACKED}", "unpack it first (bzip2 -d)"),
    (rb"7z\xbc\xaf", f"a 7z archive, {_PACKED}", "unpack it first (7z x)"),
    (rb".{257}ustar", f"a tar archive, {_PACKED}", "unpack it first (tar -xf)"),
    (rb"[{\xfb][()\xa8\xa9]\x03", "a profile of cProfile, which has calls of Python and no ops", ASK),
    (rb"NVR\0", "a report of Nsight Compute, which has counters of single kernels and no steps", ASK),
    (rb"PERFILE2", "a profile of perf", ASK),
    (rb"memray", "a profile of memray", ASK),
    (rb"\s*<(!doctype|html|\?xml|svg)", "a web page", f"{ASK}; {_MEMORY}"),
    (rb"\s*\[\s*\[", "a memory timeline, or other lists of numbers", f"{ASK}; {_MEMORY}"),
    (rb'.*"\$schema"\s*:\s*"https?://www\.speedscope', "a profile of speedscope, which has stacks and no ops", ASK),
    (rb'\s*\{\s*"schema"\s*:\s*"[\d.]+[^"]*",.*"nodes"', "an execution trace of PyTorch, which has no times",
     "give it beside the trace of the same run, rooflight analyze TRACE --execution-trace {name}"),
    (rb"[ -]*-{9,}[ -]*\r?\n\s*Name ", "a table of the profiler's averages", ASK),
    (rb"(?=[^{\[\"]*;)[^{\[\"\r\n]+ \d+\r?\n", "stacks for a flame graph, which has no times of ops", ASK),
    (rb"\n[^\n]*[\x00-\x08].*\0", "in protobuf, as profiles of Perfetto and XLA are", ASK),
)  # fmt: skip


def begin_of(path: Path, size: int = _BEGIN) -> bytes:
    """The first bytes of a file, unpacked where it is gzip that can be."""
    with path.open("rb") as file:
        begin = file.read(size)
    if not begin.startswith(GZIP):
        return begin
    try:
        return zlib.decompressobj(wbits=31).decompress(begin, size) or begin
    except zlib.error:
        return begin


def foreign(path: Path) -> str:
    """What a file is that no trace is, and what to give in its place; empty where nothing speaks against a trace."""
    begin = begin_of(path)
    found = next((row[1:] for row in _BY_BEGIN if re.match(row[0], begin, re.DOTALL | re.IGNORECASE)), None)
    if not begin.lstrip().startswith((b"{", b"[")):
        found = next((row[1:] for row in _BY_NAME if re.search(row[0], path.name)), found)
    return f"{path} is {found[0]}: {found[1].format(name=path.name)}" if found else ""
