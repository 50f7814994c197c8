"""Files that are no trace of torch.profiler: what each is, told by its name or its first bytes, and what to give."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Final

ASK: Final = "give a trace that torch.profiler exported"
GZIP: Final = b"\x1f\x8b"

_BEGIN: Final = 1 << 14
_LOOKED_AT: Final = 1 << 20
_MEMORY: Final = f"{ASK}, or of memory what torch.cuda.memory._dump_snapshot('snapshot.pickle') writes"
_UNPACK: Final = "not JSON or gzip: unpack it first"
_NCU: Final = "a report of Nsight Compute: counters of kernels, no steps"

_BY_NAME: Final = (
    (r"\.(nsys-rep|qdrep)$", "Nsight Systems' own format: export it with nsys export --type sqlite {name}"),
    (r"\.ncu-rep$", f"{_NCU}: {ASK}"),
    (r"\.xplane\.pb$", f"an XPlane profile of XLA: {ASK}"),
    (r"\.(perfetto-trace|pftrace)(\.gz)?$", f"a Perfetto trace in protobuf: {ASK}"),
    (r"\.csv$", f"a table: {ASK}, or *_kernel_trace.csv of rocprofv3"),
    (r"tfevents", f"an event file of TensorBoard: {ASK}"),
)
_BY_BEGIN: Final = (
    (rb"\s*\Z", f"empty: record it again, or {ASK}"),
    (rb"PK\x03\x04.{26}[\w .-]+/(data|version|code|\.)|\x80\x02\x8a\nl\xfc\x9cF", f"a file of torch.save: {ASK}"),
    (rb"PK\x03\x04(?!.{26}header\.json)", f"a zip archive, {_UNPACK} (unzip)"),
    (rb"\x28\xb5\x2f\xfd", f"compressed by zstd, {_UNPACK} (zstd -d)"),
    (rb"\xfd7zXZ", f"compressed by xz, {_UNPACK} (xz -d)"),
    (rb"BZh", f"compressed by bzip2, {_UNPACK} (bzip2 -d)"),
    (rb"7z\xbc\xaf", f"a 7z archive, {_UNPACK} (7z x)"),
    (rb".{257}ustar", f"a tar archive, {_UNPACK} (tar -xf)"),
    (rb"[{\xfb][()\xa8\xa9]\x03", f"a profile of cProfile, without ops: {ASK}"),
    (rb"NVR\0", f"{_NCU}: {ASK}"),
    (rb"(PERFILE2|memray)", f"a profile of perf or memray: {ASK}"),
    (rb"\s*<(!doctype|html|\?xml|svg)", f"a web page: {_MEMORY}"),
    (rb"\s*\[\s*\[", f"a memory timeline, or other lists: {_MEMORY}"),
    (rb'.*"\$schema"\s*:\s*"https?://www\.speedscope', f"a profile of speedscope, without ops: {ASK}"),
    (rb'\s*\{\s*"schema"\s*:\s*"[\d.]+[^"]*",.*"nodes"', "an execution trace of PyTorch, without times: "
     "give it beside the trace of the same run, rooflight analyze TRACE --execution-trace {name}"),
    (rb"[ -]*-{9,}[ -]*\r?\n\s*Name ", f"a table of the profiler's averages: {ASK}"),
    (rb"(?=[^{\[\"]*;)[^{\[\"\r\n]+ \d+\r?\n", f"stacks for a flame graph, without ops: {ASK}"),
    (rb"\n[^\n]*[\x00-\x08].*\0", f"in protobuf, as profiles of Perfetto and XLA are: {ASK}"),
)  # fmt: skip
_ROCM: Final = re.compile(
    rb'\s*\{\s*"rocprofiler-sdk-tool"|[^\n{]*Kernel_?Name[^\n]*(Start_Timestamp|BeginNs)'
    rb"|(?s:SQLite format 3.*(rocpd_|KernelName))"
)


def begin_of(path: Path, size: int = _BEGIN) -> bytes:
    """The first bytes of a file, unpacked where it is gzip that can be."""
    with path.open("rb") as file:
        begin = file.read(size)
    try:
        return (zlib.decompressobj(wbits=31).decompress(begin, size) if begin.startswith(GZIP) else b"") or begin
    except zlib.error:
        return begin


def is_rocm(path: Path) -> bool:
    """Whether a file begins as those of AMD's tools do."""
    return path.is_file() and _ROCM.match(begin_of(path, _LOOKED_AT)) is not None


def foreign(path: Path) -> str:
    """What a file is that no trace is, and what to give in its place; empty where nothing speaks against a trace."""
    begin = begin_of(path)
    found = next((what for mark, what in _BY_BEGIN if re.match(mark, begin, re.DOTALL | re.IGNORECASE)), "")
    if not begin.lstrip().startswith((b"{", b"[")):
        found = next((what for mark, what in _BY_NAME if re.search(mark, path.name)), found)
    return found and f"{path} is {found.format(name=path.name)}"
