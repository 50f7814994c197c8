"""Compares what every verb prints and writes with what it did at another commit.

    python benchmarks/golden.py 88ffe20              # runs both, about a minute, and shows each difference
    python benchmarks/golden.py 88ffe20 analyze fit  # only cases whose names begin so
    python benchmarks/golden.py 88ffe20 --show 40    # more lines of each difference

Each case runs once and writes text, JSON, Markdown, CSV and HTML. JSON is compared with its keys sorted. Of cases that
measure this machine, the paths of JSON, the headings of Markdown and the columns of tables are compared. Of schemas,
which fields documents have is compared, not the names of ``$defs``, words that a field may have, and which values a
reader could leave out. This machine is calibrated once, into ``.golden/cache``.
Outputs of the other commit are kept in ``.golden/COMMIT`` and not run again.
Cases of traces and tables need ``ROOFLIGHT_DATA``. The exit code is 1 where outputs differ.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".golden"
DATA = os.environ.get("ROOFLIGHT_DATA", "")
WORKERS = 2
FORMATS = ("--json", "{out}.json", "--markdown", "{out}.md", "--csv", "{out}.csv", "--html", "{out}.html")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Commands that run one after the other in a folder, or a function that prints."""

    name: str
    commands: tuple[str, ...] = ()
    run: Callable[[], object] | None = None
    plain: bool = False  # no files of other formats
    measured: bool = False


def analyzed() -> Iterable[Case]:
    """Presets in their small sizes, over modes, devices, what-ifs and predictions."""
    commands = {
        "gpt2_train": "gpt2 --step train --device H100-SXM5-80GB --predict",
        "gpt2_prefill": "gpt2 --step prefill --device H100-SXM5-80GB --predict --graph",
        "gpt2_decode": "gpt2 --step decode --device A100-SXM4-80GB --predict --host 6e-6",
        "gpt2-xl": "gpt2-xl --device RTX-4090",
        "llama_forward": "llama-3.1-8b --device B200",
        "llama_decode": "llama-3.1-70b --step decode --device MI300X --batch 4",
        "llama_train": "llama-3.1-405b --step train --device H100-SXM5-80GB --optimizer adamw-fused",
        "llama-tiny": "llama-tiny --step train --optimizer sgd --device V100-SXM2-32GB --dtype fp16",
        "qwen3": "qwen3-8b --device H100-SXM5-80GB --dtype fp32 --precision tf32",
        "qwen3_moe": "qwen3-30b-a3b --device H200 --step train",
        "mixtral": "mixtral-8x7b --device A100-SXM4-80GB --predict",
        "deepseek": "deepseek-v3 --device H100-SXM5-80GB --clock 1.4GHz",
        "neox": "gpt-neox-20b --device A100-SXM4-40GB --step train",
        "mamba": "mamba --device H100-SXM5-80GB",
        "bert": "bert-large --step train --device A100-SXM4-80GB --predict",
        "t5": "t5-3b --step train --device H100-SXM5-80GB",
        "vit": "vit-large --step train --device H100-SXM5-80GB --predict",
        "whisper": "whisper-large-v3 --device A100-SXM4-80GB",
        "resnet": "resnet-50 --step train --device V100-SXM2-16GB --predict",
    }
    for name, words in commands.items():
        yield Case(name=f"analyze_{name}", commands=(f"analyze {words} --small --no-measure",))
    session = "analyze gpt2 --small --step train --device H100-SXM5-80GB --no-measure --save gpt2.session"
    yield Case(name="analyze_session", commands=(session, "analyze gpt2.session --device B200 --predict --top 3"))
    yield Case(name="analyze_here", commands=("analyze gpt2 --small --step train --measure",), measured=True)


def traced() -> Iterable[Case]:
    """Profiles of real GPUs, alone and as ranks."""
    names = {
        "bert": "h100_bert-small.json.gz",
        "bert_predicted": "h100_bert-small.json.gz --predict",
        "alexnet": "a100_alexnet.json.gz",
        "normalization": "mi300x_normalization.json.gz",
        "triton": "mi300x_compiled_triton.json.gz",
        "vllm": "b200_vllm_moe_eager.json.gz",
        "device_events": "mi210_device_events_only.json.gz",
        "graph": "mi300x_sglang_qwen3-8b_decode_graph.json.gz"
        " --capture {data}/traces/mi300x_sglang_qwen3-8b_decode_capture_bs32.json.gz",
    }
    for name, words in names.items():
        yield Case(name=f"trace_{name}", commands=(f"analyze {{data}}/traces/{words}",))
    yield Case(name="trace_lint", commands=("lint {data}/traces/h100_bert-small.json.gz",))
    yield Case(name="trace_ranks", run=make_ranks, commands=("analyze ranks", "analyze ranks --predict --top 3"))


def make_ranks() -> None:
    """Two traces of one program, as two ranks of a run."""
    whole = json.loads(gzip.decompress((Path(DATA) / "traces" / "h100_bert-small.json.gz").read_bytes()))
    Path("ranks").mkdir()
    for rank in range(2):
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        Path(f"ranks/rank{rank}.json").write_text(json.dumps({**whole, "distributedInfo": info}))


def learned() -> Iterable[Case]:
    """Predictions of operators, tables read, checked and learned from."""
    a100, h100 = "--device A100-SXM4-80GB", "--device H100-SXM5-80GB"
    commands = {
        "gemm": f"gemm --m 4096 --n 4096 --k 4096 --dtype fp16 {a100}",
        "gemm_whatif": f"gemm --m 512 --n 512 --k 64 --dtype fp32 --precision tf32 {h100}",
        "bmm": f"batched_mm --b 64 --m 512 --n 512 --k 64 --dtype fp32 {h100}",
        "linear": "linear --rows 4096 --inputs 4096 --outputs 4096 --device B200",
        "softmax": f"softmax_rows --rows 4096 --width 2048 {a100}",
        "unknown": f"gem --m 1 --n 1 --k 1 {a100}",
        "listing": f"gemm {a100}",
    }
    for name, words in commands.items():
        yield Case(name=f"predict_{name}", commands=(f"predict {words}",))
    if DATA:
        table = "{data}/neusight/amd_train/softmax.csv.gz"
        words = "softmax_rows --rows 4096 --width 2048 --device MI210 --models models"
        yield Case(name="fit_table", commands=(f"lint {table}", f"fit {table} --out models", f"predict {words}"))
        more = "{data}/neusight/amd_train/ln.csv.gz"
        yield Case(name="fit_on", commands=(f"fit {table} --out models", f"fit {more} --on models --out both"))
        nccl = "{data}/estimate-train-time/regressors/Perlmutter/nccl"
        yield Case(name="lint_network", commands=(f"lint {nccl}/NVIDIAA100-SXM4-80GB_p2p_fp16_1_2.csv",))
        rows = "{data}/estimate-train-time/regressors/Vista/operator/NVIDIAGH200120GB_softmax_fp16.csv"
        yield Case(name="lint_operator", commands=(f"lint {rows}",))
    yield Case(name="sample_list", commands=("sample --list",), plain=True)
    yield Case(name="sample_operator", commands=("sample gemm --list",), plain=True)
    sweep = "sample softmax add --cpu --sweep test --time-box 0.2 --out sampled"
    yield Case(name="sample_sweep", commands=(sweep,), measured=True)


def compiled() -> Iterable[Case]:
    """Programs of a file: what compiling them brings, what it makes of them, a kernel beside its bounds."""
    yield Case(name="bench_predicted", commands=("compile-bench gpt2 --small --predict-only --device H100-SXM5-80GB",))
    yield Case(name="bench", commands=("compile-bench program.py:work --quick",), run=write_files, measured=True)
    yield Case(name="explain", commands=("explain program.py:breaks --calls 2",), run=write_files, measured=True)
    yield Case(name="score", commands=("score problem.py right.py --trials 5",), run=write_files, measured=True)
    there = "score problem.py right.py --device H100-SXM5-80GB"
    yield Case(name="score_there", commands=(there, "analyze problem.py --no-measure --device B200"), run=write_files)


def write_files() -> None:
    """A program to compile, and a problem with a solution."""
    Path("program.py").write_text(
        "import torch\n\n\ndef get_inputs():\n    return [torch.randn(64, 64)]\n\n\n"
        "def work(x):\n    return torch.relu(x @ x).softmax(-1).sum()\n\n\n"
        "def breaks(x):\n    y = torch.relu(x @ x)\n    if y.sum() > 0:\n        y = y + 1\n    return y.softmax(-1)\n"
    )
    model = "class {0}(nn.Module):\n    def forward(self, x):\n        return torch.relu(x @ x)\n"
    head = "import torch\nfrom torch import nn\n\n\n"
    inputs = "\n\ndef get_inputs():\n    return [torch.randn(64, 64)]\n\n\ndef get_init_inputs():\n    return []\n"
    Path("problem.py").write_text(head + model.format("Model") + inputs)
    Path("right.py").write_text(head + model.format("ModelNew"))


def decoded() -> Iterable[Case]:
    """Decode steps, timed here and by a clock that the program moves."""
    small = "profile-decode llama-tiny --small --batch 2 --prompt 16 --new 8 --runs 2 --warmup 1 --run-name run"
    yield Case(name="decode_plain", commands=(f"{small} --output-dir out",), measured=True)
    draft = "--draft self:1 --acceptance 0.8 --slo-ttft-ms 50"
    yield Case(name="decode_draft", commands=(f"{small} --output-dir out {draft}",), measured=True)
    for name, settings in CLOCKED.items():
        yield Case(name=f"decode_clock_{name}", run=lambda settings=settings: decode_by_clock(settings))


CLOCKED: dict[str, dict[str, Any]] = {
    "both": {"model_profiling": True, "engine_profiling": True},
    "model": {"model_profiling": True, "warmup_runs": 1},
    "engine": {"engine_profiling": True},
}


def decode_by_clock(settings: dict[str, Any]) -> None:
    """Runs of decode steps whose times the clock says, with buckets inside each other."""
    from rooflight.inference import Profiler, ProfilerConfig, register_active_profiler, release_active_profiler

    now = [0]
    config = ProfilerConfig(**{"output_dir": "out", "run_name": "run", "warmup_runs": 0, **settings})
    profiler = Profiler(config, device="cpu", clock=lambda: now[0])
    register_active_profiler(profiler)
    for run in range(3):
        profiler.begin_run(bsz=2)
        for step in range(6):
            with profiler.step_timing_ctx():
                profiler.set_step_tokens(2)
                profiler.set_step_seq_len(500 + 10 * step)
                for bucket, ns in (("attn.sdpa", 4000 + 100 * step), ("ffn", 7000 + run), ("norms", 500)):
                    with profiler.cuda_bucket_timer(bucket):
                        now[0] += ns
                        with profiler.cpu_bucket_timer("engine.sampling"):
                            now[0] += 300
                now[0] += 250
        profiler.end_run()
    profiler.save_all()
    release_active_profiler()


def others() -> Iterable[Case]:
    """Devices, presets, this machine's roofs, what is refused, the schemas."""
    yield Case(name="presets", commands=("presets",))
    names = ("H100-SXM5-80GB", "MI300X", "B200")
    shown = tuple(f"devices show {name}" for name in names)
    yield Case(name="devices", commands=("devices", *shown))
    yield Case(name="calibrate", commands=("calibrate --device cpu --quick",), measured=True)
    wrong = (
        "analyze nothing",
        "analyze gpt2 --device H300",
        "analyze gpt2 --small --step sideways",
        "analyze gpt2 --small --batch 0",
        "analyze gpt2 --small --no-measure --top 0",
        "analyze program.py --device B200",
        "analyze program.py:nothing --device B200",
        "analyze resnet-50 --seq 4",
        "analyze empty.json --device B200",
        "predict nothing --m 1",
        "predict gemm --m 0 --n 1 --k 1 --device B200",
        "predict gemm --m 1 --device B200",
        "lint nothing.csv",
        "lint empty.json",
        "fit nothing.csv",
        "sample nothing --cpu",
        "sample gemm --sweep odd",
        "merge nothing.csv",
        "devices show H300",
        "profile-decode gpt2 --small --new 0",
        "profile-decode gpt2 --small --gamma 2",
        "compile-bench program.py:nothing",
        "compile-bench gpt2 --iterations 0",
        "explain nothing",
        "score program.py program.py",
        "calibrate --threads 0",
        "analyze gpt2 --small --json /nowhere/x.json",
        "frobnicate",
        "analyze",
    )
    yield Case(name="refused", commands=wrong, run=write_wrong, plain=True)
    yield Case(name="schemas", run=print_schemas)


def write_wrong() -> None:
    """A file without a step, and one without an event."""
    write_files()
    Path("empty.json").write_text("{}")


def print_schemas() -> None:
    """The schema of each document with its parts inside it, whatever these are called."""
    from rooflight.reporting.schemas import schemas_text

    whole = json.loads(schemas_text())

    def inside(value: Any, above: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [inside(each, above) for each in value]
        if not isinstance(value, dict):
            return value
        name = str(value.get("$ref", "")).rpartition("/")[2]
        if name:
            return "(again)" if name in above else inside(whole["$defs"][name], (*above, name))
        if "enum" in value:
            return {"type": "string"}
        left = {"title", "description", "default", "required", "additionalProperties"}
        return {key: inside(each, above) for key, each in value.items() if key not in left}

    documents = [inside(each, ()) for each in whole["anyOf"]]
    documents.sort(key=lambda each: str(each["properties"]["schema"]))
    print(json.dumps(documents, indent=1, sort_keys=True))


def cases() -> list[Case]:
    """All cases that can run here."""
    traces = traced() if DATA else ()
    return [*analyzed(), *traces, *learned(), *compiled(), *decoded(), *others()]


def run_case(case: Case, folder: Path) -> None:
    """Run a case in an empty folder; leave all that it printed and wrote below ``folder``."""
    from rooflight.cli.main import main as command_line

    work = Path(tempfile.mkdtemp())
    os.chdir(work)
    os.environ["ROOFLIGHT_CACHE"] = str(KEPT / "cache" if case.measured else work / "cache")
    (work / "formats").mkdir()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if case.run is not None:
            case.run()
        for number, command in enumerate(case.commands):
            words = command.format(data=DATA).split()
            if not case.plain:
                words += [word.format(out=f"formats/{number}") for word in FORMATS]
            print(f"$ rooflight {command}")
            sys.argv = ["rooflight", *words]
            try:
                command_line()
            except SystemExit as end:
                print("exit", end.code)
    target = folder / case.name
    target.mkdir(parents=True)
    (target / "printed.txt").write_text("" if case.measured else cleaned(printed.getvalue(), work))
    for path in sorted(each for each in work.rglob("*") if each.is_file()):
        name = path.relative_to(work)
        if path.suffix in {".json", ".md", ".csv", ".html", ".txt"} and name.parts[0] in {"formats", "out"}:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(shape_of(path) if case.measured else cleaned(readable(path), work))
    os.chdir(ROOT)
    shutil.rmtree(work)


def readable(path: Path) -> str:
    """A file as lines: JSON with a value per line, HTML with an element per line."""
    text = path.read_text(errors="replace")
    if path.suffix == ".json":
        return json.dumps(json.loads(text), indent=1, sort_keys=True)
    return text.replace("><", ">\n<") if path.suffix == ".html" else text


def shape_of(path: Path) -> str:
    """What does not depend on times: paths of JSON, headings and columns of tables."""
    text = path.read_text(errors="replace")
    if path.suffix == ".json":
        return "\n".join(sorted(set(paths(json.loads(text)))))
    lines = text.splitlines()
    if path.suffix == ".csv":
        return lines[0]
    if path.suffix == ".md":
        below = [*lines[1:], ""]
        return "\n".join(a for a, b in zip(lines, below, strict=True) if a.startswith("#") or b.startswith("| -"))
    return ""


def paths(value: Any, above: str = "") -> Iterable[str]:
    """The paths of all values in JSON, whatever their places in lists."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from paths(each, f"{above}.{key}")
    elif isinstance(value, list) and value:
        for each in value:
            yield from paths(each, f"{above}[]")
    else:
        yield above


def cleaned(text: str, work: Path) -> str:
    """Without what differs from run to run: folders, dates, the memory that the process took."""
    text = text.replace(str(work), "WORK").replace(DATA or "\0", "DATA")
    text = re.sub(r"\d{4}-\d\d-\d\d([T _-]?[\d:.+]+Z?)?|object at 0x\w+", "TIME", text)
    own = r"^.*(resident| [MG]B \||(after|before|peak)_bytes|bucket_ns|in_step_|own cost).*$"
    return re.sub(own, "OF THIS PROCESS", text, flags=re.MULTILINE)


def record(folder: Path, wanted: list[str], part: int) -> None:
    """Run every second case of those wanted into a folder, from the code that Python imports."""
    import warnings

    warnings.simplefilter("ignore")
    os.environ["KINETO_LOG_LEVEL"] = "6"
    for number, case in enumerate(selected(wanted)):
        if number % WORKERS == part:
            try:
                run_case(case, folder)
            except Exception:
                (folder / case.name).mkdir(parents=True, exist_ok=True)
                (folder / case.name / "failed.txt").write_text(traceback.format_exc())
                os.chdir(ROOT)


def selected(wanted: list[str]) -> list[Case]:
    """The cases whose names begin as wanted; all where nothing is."""
    return [case for case in cases() if not wanted or case.name.startswith(tuple(wanted))]


def recorded(source: Path, folder: Path, wanted: list[str]) -> None:
    """Record with the code below ``source``, in processes of their own."""
    variables = {
        **os.environ,
        "PYTHONPATH": str(source),
        "COLUMNS": "132",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, __file__, "--record", str(folder), *wanted]
    parts = [subprocess.Popen([*command, "--part", str(part)], env=variables) for part in range(WORKERS)]
    if sum(part.wait() for part in parts):
        sys.exit("a recording failed")


def base(commit: str, wanted: list[str]) -> Path:
    """The outputs of a commit, recorded where they are not kept yet."""
    commit = subprocess.check_output(["git", "rev-parse", "--short=12", commit], cwd=ROOT, text=True).strip()
    folder = KEPT / commit
    missing = [case.name for case in selected(wanted) if not (folder / case.name).exists()]
    if missing:
        tree = Path(tempfile.mkdtemp()) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            recorded(tree / "src", folder, missing)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    return folder


def differences(old: Path, new: Path, names: list[str], show: int) -> int:
    """Print how outputs differ; how many do."""
    count = 0
    for name in names:
        before, after = outputs(old / name), outputs(new / name)
        for file in sorted(before.keys() | after.keys()):
            pair = before.get(file, []), after.get(file, [])
            lines = list(difflib.unified_diff(*pair, "before", "after", lineterm="", n=0))[2:]
            if lines:
                count += 1
                print(f"{name}/{file}: {len(lines)} lines")
                print("\n".join(f"    {line[:160]}" for line in lines[:show]))
    return count


def outputs(folder: Path) -> dict[str, list[str]]:
    """The lines of each file below a folder."""
    files = [path for path in folder.rglob("*.*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text().splitlines() for path in files}


def main() -> int:
    """Compare, or record where this is a process of a recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="the commit to compare with")
    parser.add_argument("cases", nargs="*", help="how names of cases begin")
    parser.add_argument("--show", type=int, default=6, help="lines shown of each difference")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        record(options.record, [each for each in (options.commit, *options.cases) if each], options.part)
        return 0
    if options.commit is None:
        parser.error("name the commit to compare with")
    old, new = base(options.commit, options.cases), KEPT / "now"
    shutil.rmtree(new, ignore_errors=True)
    recorded(ROOT / "src", new, options.cases)
    names = [case.name for case in selected(options.cases)]
    count = differences(old, new, names, options.show)
    print(f"{len(names)} cases, {count} outputs differ" if count else f"{len(names)} cases, no output differs")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
