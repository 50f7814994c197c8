"""Whatever the verb: no line is wider than the terminal, or than 160 columns in a pipe, and the conclusion is first."""

import pytest
from kineto_traces import kernel, launch, op, write
from rich.cells import cell_len

MM = {"dims": [[4096, 4096], [4096, 4096]], "types": ["c10::BFloat16", "c10::BFloat16"]}
LONG = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, " + "x" * 300
EVENTS = [op("aten::mm", 0, 20, **MM), launch(2, 1), kernel(10, 900, 1, name=LONG), kernel(2000, 2100, 7)]
ON = ("--device", "H100-SXM5-80GB")
VERBS = [
    ("analyze", "gpt2", "--small", "--seq", "8", "--step", "train", "--predict", *ON),
    ("analyze", "trace.json"),
    ("analyze", "trace.json", "--device", "B200-SXM"),
    ("compile-bench", "--predict-only", "gpt2", "--small", "--seq", "8", *ON),
    ("devices",),
    ("devices", "show", "H100-SXM5-80GB"),
    ("lint", "trace.json"),
    ("predict", "gemm", "--m", "8", "--n", "8", "--k", "8", "--dtype", "fp16", *ON),
    ("presets",),
    ("sample", "--list"),
]


@pytest.mark.parametrize("width", [80, None], ids=["80 columns", "a pipe"])
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_nothing_is_wider_than_where_it_is_printed(run, tmp_path, monkeypatch, words, width):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "trace.json", EVENTS)
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    out = run(*words)[1]
    lines = out.splitlines()
    assert len(lines) > 3
    assert max(map(cell_len, lines)) <= (width or 160)
