"""What cannot be is refused in one line before any work: per verb the words of a command, and words of the refusal."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from builders import op, spec
from gemm_table import fit_models
from kineto_traces import write_rank
from measured_tables import GRID, write_table
from scoring_problems import Files
from sessions import Call, session_of

from rooflight.hardware.machine import calibration

X = spec((1000,))
SUM = op("c10d::allreduce_", {"tensors": [X]}, [X], group_size=2)
H100, A100 = "--device H100-SXM5-80GB", "--device A100-SXM4-80GB"
RUN, RANKS, TRACES = f"a.session {H100}", f"rank0.session rank1.session {H100}", "traces/rank0.json"
GEMM = f"gemm {H100} --n 4 --k 4"
LLAMA = "llama-tiny --no-bounds"

NOTHING = [
    ("analyse gpt2", "'analyze'"),
    ("lint x.csv --tpo 3", "--top"),
    ("lint", "missing argument"),
    ("lint x.csv --top nan", "--top"),
    ("lint x.csv --top", "--top"),
    ("lint ''", "an argument is empty: was a variable of the shell not set?"),
    ("lint file --top 0", "--top 0"),
    ("lint nowhere", "there is no nowhere"),
    ("lint -row.csv", "./-row.csv is the file"),
    ("lint -- -row.csv", "-row.csv has an unknown format"),
    ("merge file --out .", "is a folder"),
    ("merge .", "directory"),
    ("devices shw", "'show'"),
    ("devices --json - show A10", "--json: write it after show"),
]
ANALYZE = [
    ("gpt3", "did you mean gpt2"),
    ("gpt2 --step fly", 'unknown step "fly"'),
    ("gpt2 --mode train", "no such option: --mode (Possible options: --step)"),
    ("gpt2 --dtype fp3", 'unknown dtype "fp3"'),
    ("gpt2 --dtype int8", "int8"),
    ("gpt2 --device 'NVIDIA H300'", 'unknown device "NVIDIA H300"'),
    ("gpt2 --batch 0", "at least 1"),
    ("gpt2 --seq 5000", "1024 positions"),
    ("gpt2 --top 0", "at least 1 row"),
    ("gpt2 --optimizer sgd", "optimizer sgd has no effect: step forward has none; use step train"),
    ("gpt2 --json /no/such/folder/x.json", "no folder"),
    ("gpt2 --save /no/such/folder/x", "no folder"),
    ("gpt2 --markdown - --json -", "only one can have standard output"),
    ("gpt2 --inputs x", "--inputs x: only a function of your own, file.py:function, takes inputs"),
    ("resnet-50 --step decode", "no step decode"),
    ("resnet-50 --seq 12", "seq 12 has no effect: resnet-50 takes images"),
    ("mixtral-8x7b --dtype fp32", "needs dtype bfloat16 (--dtype bf16): torch has no other grouped matmul"),
    ("nowhere.py:make_step", "nowhere.py"),
    ("step.py:make_step --batch 3", "--batch"),
    ("step.py:takes " + H100, "step.py:takes takes arguments: define get_inputs() beside it"),
    *((name, f"rooflight: no file {name}") for name in ("none.json.gz", "none.json", "none.session", "none.nsys-rep")),
    ("none.sqlite", "rooflight: no file none.sqlite"),
    # what cannot change a saved session or a trace
    (f"{RUN} --batch 4", "--batch"),
    *((f"{several} {H100} {option}", option.split()[0])
      for several in ("a.session", "a.session a.session")
      for option in ("--measure", "--no-measure", "--small", "--dtype bf16", "--step train")),
    ("a.session b.session --inputs x", "--inputs x: no effect, saved sessions cannot run again"),
    ("a.session --inputs x", "--inputs x: no effect on a.session: a saved session cannot run again"),
    ("a.json.gz --inputs x", "--inputs x: no effect on a.json.gz: a trace cannot run again"),
    (f"{TRACES} --batch 3", "a trace cannot run with other options"),
    (f"{TRACES} --no-measure", "a trace cannot run again"),
    # models, hosts and suppositions
    (f"{RUN} --models models --graph --host 1e-6", "--graph: its host launches once"),
    (f"{RUN} --models models --host -1", "at least 0"),
    (f"{RUN} --predict --models empty", "holds no models: make some with rooflight fit DATA --out"),
    (f"{RUN} --models nowhere", "holds no models"),
    ("a.session --device cpu --clock 2GHz", "measured at a clock that is not known"),
    # ranks of a run
    (f"rank0.session {RANKS}", "rank0.session and rank0.session are both rank 0: give each rank's session once"),
    (f"rank0.session of4.session {H100}", "rank0.session is of 2 ranks, of4.session of 4: these are different runs"),
    (f"rank0.session gpt2 {H100}", "gpt2 is no saved session and no trace: several targets are those of one run, one "
     "per rank"),
    (f"rank0.session a.session {H100}", "a.session has no rank: record it after torch.distributed.init_process_group"),
    (f"{RANKS} --step train", "--step: saved sessions cannot run with other options"),
    (f"{RANKS} --save x", "--save: a file has one session, and each rank has its own: save them one by one"),
    (f"{RANKS} --measure", "--measure: no effect, saved sessions cannot run again"),
    ("empty", "empty has no traces (files *.json or *.json.gz"),
    ("unranked", "2 traces, of which 2 have no rank (a.json, b.json): give one trace, or those of the ranks"),
    ("unranked/a.json unranked/b.json", "a.json has no rank"),
    (f"{TRACES} other/rank1.json", "rank0.json and rank1.json are of different programs"),
    (f"{TRACES} {TRACES}", "rank0.json and rank0.json are both rank 0: give each rank's session once"),
    (f"traces {TRACES}", "is no saved session and no trace: several targets are those of one run"),
    (f"traces --capture {TRACES}", "--capture, --execution-trace: no effect on several targets"),
    (f"{TRACES} --executor ray", "--executor, --address: no effect on one file"),
    ("traces --address host:1", "--address: no effect without --executor ray"),
    ("traces --executor ray --address localhost:1", "no Ray cluster at localhost:1"),
    ("traces --save empty/x.session", "--save: a file has one session"),
]  # fmt: skip
SUPPOSED = [
    ("--clock 2GHz", "2 GHz is above the highest clock of A100-SXM4-80GB, 1.41 GHz"),
    ("--clock soon", '--clock: "soon" is no clock: give one such as 1.5GHz, 1410MHz or 1.5e9'),
    ("--precision fp8", "A100-SXM4-80GB has no known fp8 matrix peak"),
    ("--precision int8", '--precision: "int8" is no precision'),
]
SAMPLE = [
    # options that would be ignored in silence
    ("gemm --list --cpu", "--cpu: --list samples nothing"),
    ("--write-config --executor slurm", "--executor: --write-config samples nothing"),
    ("--write-config --list", "--write-config: --list samples nothing"),
    ("gemm --cpu --json x", "--json: only --list has a report"),
    ("gemm --cpu --address x", "--address: for --executor ray"),
    ("gemm --cpu --submit", "--submit: for --executor slurm"),
    ("gemm --cpu --sweep test --budget 5m", "--budget: --sweep test samples all"),
    ("--config file --budget 5m", "--budget: --config samples all"),
    ("gemm --executor ray --threads 1", "--threads: the workers of Ray"),
    ("gemm --executor slurm --device-num 1", "--device-num: a cluster"),
    # numbers that cannot be, and files for folders
    ("gemm --cpu --threads 0", "--threads"),
    ("gemm --cpu --time-box inf", "--time-box inf"),
    ("gemm --cpu --time-box nan", "--time-box nan"),
    ("gemm --cpu --parts 0", "--parts 0"),
    ("gemm --cpu --out file", "--out file is a file: name a folder"),
    ("gemm --cpu --out file/deeper", "--out file/deeper: file is a file"),
    ("--list gmem", "did you mean gemm"),
]
CALIBRATE = [
    ("--out x", "--out: for --executor slurm or ray"),
    ("--nodes 2", "--nodes: for --executor slurm"),
    ("--executor ray --partition x", "--partition: for --executor slurm"),
    ("--address auto", "--address: for --executor ray"),
    ("--quick --force", "--quick saves no roofs"),
    ("--executor slurm --nodes 0", "--nodes"),
    ("--executor slurm --out file", "--out file is a file: name a folder"),
    ("--device tpu", "'tpu' is not one of 'cpu', 'cuda'"),
]
FIT = [
    ("a.csv --out ''", "--out is empty"),
    ("a.csv --out=", "--out is empty"),
    ("file --out file", "--out file is a file: name a folder"),
    ("bad --out file", "file is a file: name a folder"),
    ("few --out new", "too few rows of any kind to learn from: sample other shapes, or add them to other models"),
    ("nowhere --out new", "there is no"),
    ("few bad --out new", 'is "half"'),
    ("few --out new --json - --markdown -", "only one can have standard output"),
    ("few --out new --json none/x.json", "no folder"),
    ("few --out new --on nowhere", "--on nowhere holds no models: give shipped, or a folder that rooflight fit wrote"),
    ("few --out new --on shipped --trees-only", "leave out --on or --trees-only"),
]
PREDICT = [
    (f"{GEMM} --m 0", "m=0 is too small"),
    (f"{GEMM} --m -4", "m=-4 is too small"),
    (f"{GEMM} --m nan", "--m nan: give a whole number"),
    (f"{GEMM} --m 4.5", "--m 4.5: give a whole number"),
    (f"{GEMM} --m ²", "--m ²: give a whole number"),
    (f"{GEMM} --m --4", "--m --4: give a whole number"),
    (f"{GEMM} --m", "--m: give a whole number"),
    (f"{GEMM} --m {10**23}", "too large"),
    (f"{GEMM} --m {'1' * 5000}", "too large"),
    (f"{GEMM} --m 9300000000000000000", "too large"),  # 2**63 is 9.22e18
    (f"gemm --m 4000000000 --n 4000000000 --k 4 {H100}", "2**63 - 1 elements"),
    ("gemm --n 4 --k 4 --m 4 --devcie cpu", "--devcie: did you mean --device?"),
    (f"{GEMM} --m 4 --q 7", "--q: gemm has no such parameter, it has --m, --n, --k"),
    (f"{GEMM} -m 4", "-m: give each parameter"),
    (f"{GEMM} --m 4 --m 5", "--m is given twice"),
    ("gemm --n 4 --k 4 --m 4", "--device NAME is missing"),
    (f"gemm stray {H100}", "--name number"),
    (f"gemm --m 4 --n {H100}", "--n: give a whole number"),
    (f"gemm --m 4 {H100}", "gemm needs n, k"),
    (f"gem --m 4 {H100}", "did you mean gemm"),
    (f"{GEMM} --m 4 --dtype fp17", "fp17"),
    ("gemm --m 4 --n 4 --k 4 --device H300 --models models", "H300"),
    (f"{GEMM} --m 4 --models empty", "holds no models: make some with rooflight fit DATA --out"),
    (f"{GEMM} --m 4 --models damaged", ".model.npz: not a model of rooflight fit"),
]
SCORE = [
    ("nothing.py nothing.py", "no file nothing.py"),
    ("gpt2 gpt2", "no file gpt2"),
    ("problem.py .", "no file ."),
    ("problem.json problem.py", "problem.json is no Python file"),
    ("solution.py problem.py", "solution.py defines no Model and no get_inputs and no get_init_inputs"),
    ("problem.py solution.py --trials 0", "--trials 0: at least 1 trial"),
    ("problem.py solution.py --device H300", "unknown device"),
]
DECODE = [
    (f"{LLAMA} --new 0", "--new 0: give a number from 2 on: the prefill makes the first token"),
    (f"{LLAMA} --new 1", "--new 1: give a number from 2 on"),
    (f"{LLAMA} --batch 0", "--batch 0: give a number from 1 on"),
    (f"{LLAMA} --prompt 0", "--prompt 0: give a number from 1 on"),
    (f"{LLAMA} --runs 0", "--runs 0: measure at least 1"),
    (f"{LLAMA} --warmup -1", "--warmup -1: give a number of runs from 0 on"),
    (f"{LLAMA} --slo-tpot-ms 0", "slo_tpot_ms is 0"),
    (f"{LLAMA} --prompt 1000", "need 1,127 positions: LlamaForCausalLM has 1,024"),
    (f"{LLAMA} --draft llama-tiny-draft --gamma 0", "gamma 0: draft at least 1 token a step"),
    (f"{LLAMA} --draft llama-tiny-draft --acceptance 2", "acceptance 2.0: give a probability"),
    (f"{LLAMA} --gamma 3", "--gamma: no effect without --draft"),
    (f"{LLAMA} --no-baseline", "--no-baseline: no effect without --draft"),
    (f"{LLAMA} --draft gpt2", "the draft has 50,257 tokens, the target 32,000"),
    (f"{LLAMA} --draft bert-large", "--draft bert-large: bert-large is BertForMaskedLM, masked-lm"),
    (f"{LLAMA} --draft self:8", "llama-tiny has 8 layers; take from 1 to 7"),
    (f"{LLAMA} --draft llama-tiny-draft --cache static", "--cache static: no effect with --draft"),
    (f"{LLAMA} --cache paged", "--cache paged: give one of dynamic, static, ragged"),
    (f"{LLAMA} --temperature nan", "temperature nan: give 0"),
    (f"{LLAMA} --dtype int8", "int8"),
    (f"{LLAMA} --device cuda", "no CUDA device here"),
    (f"{LLAMA} --output-dir file", "is a file: name a folder"),
    ("mamba-130m --draft self:1 --small", "rejected tokens cannot be taken back"),
    ("bert-large", "bert-large is BertForMaskedLM, masked-lm: only decoders (causal-lm) generate tokens here"),
    ("t5-3b", "only decoders (causal-lm) generate tokens here"),
    ("llama-3.1-405b", "weights and KV cache need 1.63 TB"),
    ("no-such-model", 'unknown target "no-such-model"'),
    ("engine.py:number", "returned int: return an engine with a method run(batch, prompt_tokens"),
    ("engine.py:other", "the engine cannot be run with batch"),
    ("engine.py:fails", "engine.py:fails raised ZeroDivisionError"),
    ("engine.py:none", "engine.py has no function none"),
]
VERBS = {
    "": NOTHING,
    "analyze ": ANALYZE,
    f"analyze a.session {A100} ": SUPPOSED,
    "devices show A100-SXM4-80GB ": SUPPOSED,
    "sample ": SAMPLE,
    "calibrate ": CALIBRATE,
    "fit ": FIT,
    "predict ": PREDICT,
    "score ": SCORE,
    "profile-decode ": DECODE,
}
ENGINES = """
def number(): return 3
def other(): return object(), lambda tokens: None
def fails(): 1 / 0
"""
STEPS = """
def make_step(): return print
def takes(x): return x
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with what the commands name."""
    folder = tmp_path_factory.mktemp("files")
    for name, content in {"file": "text", "-row.csv": "", "a.json.gz": "", "b.session": "", "problem.json": "{}",
                          "engine.py": ENGINES, "step.py": STEPS}.items():  # fmt: skip
        (folder / name).write_text(content)
    for name in ("empty", "traces", "other", "unranked", "damaged"):
        (folder / name).mkdir()
    for name, rank, size in (("a", "", ""), ("rank0", "0", "2"), ("rank1", "1", "2"), ("of4", "1", "4")):
        environment = {"rank": rank, "world_size": size} if rank else {}
        session_of([Call(op=SUM)], storage_bytes=[4000], environment=environment).save(folder / f"{name}.session")
    for rank, computing in enumerate((10, 20, 50, 30)):
        write_rank(folder / "traces" / f"rank{rank}.json", rank, computing)
    write_rank(folder / "other" / "rank1.json", 1, 20, name="aten::matmul_of_my_own")
    for name in ("a.json", "b.json"):
        write_rank(folder / "unranked" / name, None, 10)
    fit_models(folder)
    for path in (folder / "models").glob("*.npz"):
        (folder / "damaged" / path.name).write_bytes(path.read_bytes()[:500])
    write_table(folder / "few", shapes=GRID[:10])
    bad = write_table(folder / "bad")
    bad.write_text(bad.read_text().replace("512", "half", 1))
    problem = Files(folder)
    problem.reference()
    problem.solution()
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [pytest.param(verb + words, text, id=(verb + words)[:70]) for verb, rows in VERBS.items() for words, text in rows],
)
def test_what_cannot_be_is_refused_in_one_line(refused, files, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(files)
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))  # no calibration: and none is made
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: pytest.fail("calibrated"))
    before = sorted(files.rglob("*"))
    said = " ".join(refused(*shlex.split(words)).split())
    assert expected in said
    assert len(said) < 400
    assert sorted(files.rglob("*")) == before


def test_a_text_that_is_not_utf8_is_refused_by_name(tmp_path):
    from rooflight.prediction.model.files import read_manifest
    from rooflight.records.samples import read
    from rooflight.sources.traces.ops.execution_trace import _nodes
    from rooflight.studies.inference.saving import read_summary

    for read_it, name, key in (
        (read, "a.jsonl", "kernel"),
        (read_summary, "summary.json", "schema"),
        (lambda path: read_manifest(path.parent), "manifest.json", "schema"),
        (_nodes, "et.json", "nodes"),
    ):
        path = tmp_path / name
        path.write_bytes(b'{"%s": "caf\xe9"}\n' % key.encode())
        with pytest.raises(ValueError, match=name) as refused:
            read_it(path)
        assert type(refused.value) is ValueError
