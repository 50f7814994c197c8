"""torch's own samples of its ops, modules and optimizers, run on the CPU and on a GPU that is not there.

    python benchmarks/conformance.py [--samples 2] [--only NAME]

Compared are shapes, types, strides, devices, which input a result shares memory with, errors, and the values of what
is on the host. What differs is printed with both; what a value decides is counted by itself.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
DEVICE = "H100-SXM5-80GB"
VALUE_DECIDES = (
    "nonzero",
    "argwhere",
    "masked_select",
    "unique",
    "unique_consecutive",
    "bincount",
    "repeat_interleave",
    "LBFGS",
)
"""The shapes of their results are in values that are not there."""
ON_HOST = ("step", "mu_product")  # of an optimizer, also with a GPU
AS_ON_CUDA = (
    "scaled_dot_product_attention", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
    "native_layer_norm", "tensor_split", "histogram", "histogramdd", "eig",
)  # fmt: skip
"""A GPU answers otherwise than a CPU: by fused kernels, statistics in float32, other refusals, or as values say."""
HOW = ("conform", "as on CUDA", "strides alone", "a value decides", "refused by name", "differ")
STRIDES = re.compile(r"\[[\d, ]*\]")
EMPTY = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--into", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.into:
        return inside(Path(asked.into), asked.samples, asked.only)
    with tempfile.TemporaryDirectory() as folder:
        words = [str(Path(__file__).resolve()), "--samples", str(asked.samples), "--only", asked.only, "--into"]
        there = [
            "-m",
            "rooflight",
            "run",
            "--on",
            DEVICE,
            "--step",
            "module:NoModule",
            "--save",
            f"{folder}/it.session",
        ]
        outcomes = []
        for name, before in (("here", []), ("there", there)):
            path = Path(folder, f"{name}.json")
            done = subprocess.run(
                [sys.executable, *before, *words, str(path)], capture_output=True, text=True, check=False
            )
            if not path.exists():
                print(done.stderr[-3000:])
                return 1
            outcomes.append(dict(map(json.loads, path.read_text().splitlines())))
    return compared(*outcomes)


def compared(here: dict[str, str], there: dict[str, str]) -> int:
    """Print each difference, and a table of how many of each kind conform."""
    count, found_as = Counter[str](), Counter[tuple[str, str]]()
    for case, wanted in here.items():
        kind, name, *_ = case.split(" ")
        if kind == "op_error" and case not in there:  # the database has others of devices
            continue
        found = there.get(case, "not reached")
        count[kind] += 1
        is_error = wanted[:1] == found[:1] == "!"
        if wanted == found or (is_error and wanted.partition(":")[0] == found.partition(":")[0]):
            how = "conform"
        elif STRIDES.sub("", wanted) == STRIDES.sub("", found):
            how = "strides alone"
        elif name.rpartition(".")[2] in AS_ON_CUDA:
            how = "as on CUDA"
        elif name.rpartition(".")[2] in VALUE_DECIDES:
            how = "a value decides"
        elif "virtual GPU" in found:
            how = "refused by name"
        else:
            how = "differ"
        found_as[kind, how] += 1
        if how in ("differ", "strides alone", "refused by name"):
            print(f"{how}: {case}\n    here   {wanted[:300]}\n    there  {found[:300]}")
    print(f"\n{'':<16}{'cases':>8}" + "".join(f"{how:>17}" for how in HOW))
    for kind, cases in count.items():
        print(f"{kind.replace('_', ' '):<16}{cases:>8}" + "".join(f"{found_as[kind, how]:>17}" for how in HOW))
    return 0


# -- in the process that is looked at


def inside(path: Path, limit: int, only: str) -> int:
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = *of_ops(device, limit), *of_errors(device), *of_modules(device, limit), *of_optimizers(device)
    with path.open("w") as file:
        for case, run in cases:
            if only in case:
                file.write(json.dumps((case, outcome(run))) + "\n")
                file.flush()
    return 0


def outcome(run: Any) -> str:
    try:
        return "; ".join(run())
    except Exception as error:
        return f"!{type(error).__name__}: {str(error)[:200]}"


def of_ops(device: str, limit: int) -> Iterator[tuple[str, Any]]:
    import torch
    from opinfo import opinfos

    for dtype in (torch.float32, torch.bfloat16):
        for info in opinfos():
            if dtype not in info.supported_dtypes("cpu") or info.name in EMPTY:
                continue
            grads = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
            torch.manual_seed(0)
            try:
                samples = list(zip(range(limit), info.sample_inputs("cpu", dtype, requires_grad=grads), strict=False))
            except Exception:
                continue
            for number, sample in samples:
                case = f"op_{str(dtype)[6:]} {info.name} {info.variant_test_name} {number}"
                yield case, lambda info=info, sample=sample: of_a_call(info.op, sample, device)


def of_errors(device: str) -> Iterator[tuple[str, Any]]:
    """What torch's database says that an op refuses."""
    from opinfo import opinfos

    for info in opinfos():
        try:
            samples = list(info.error_inputs(device)) if info.error_inputs_func else []
        except Exception:  # made on a device of which this build has no numbers
            continue
        for number, each in enumerate(samples):

            def run(info: Any = info, each: Any = each) -> list[str]:
                sample = each.sample_input
                try:
                    info.op(sample.input, *sample.args, **sample.kwargs)
                except each.error_type:
                    return ["refused"]
                return ["answered"]

            yield f"op_error {info.name} {info.variant_test_name} {number}", run


def of_modules(device: str, limit: int) -> Iterator[tuple[str, Any]]:
    import torch
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        for training in (True, False):
            torch.manual_seed(0)
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for number, each in zip(range(limit), inputs, strict=False):
                case = f"module {info.name} {'train' if training else 'eval'} {number}"
                yield case, lambda info=info, each=each, training=training: of_a_module(info, each, training, device)


def of_a_module(info: Any, each: Any, training: bool, device: str) -> list[str]:
    import torch

    torch.manual_seed(0)
    module = info.module_cls(*each.constructor_input.args, **each.constructor_input.kwargs)
    module.to(device).train(training)
    found = of_a_call(module, each.forward_input, device, once=True)
    return [*found, *(f"{name} {said(kept, device)}" for name, kept in module.state_dict().items())]


def of_optimizers(device: str) -> Iterator[tuple[str, Any]]:
    import torch
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for number, each in enumerate(info.optim_inputs_func("cpu")):
            for way in ({}, *({flag: True} for flag in info.supported_impls if flag in ("foreach", "fused"))):

                def run(info: Any = info, each: Any = each, way: dict[str, bool] = way) -> list[str]:
                    model = torch.nn.Linear(4, 4).to(device)
                    kept = {key: value for key, value in each.kwargs.items() if key not in ("foreach", "fused")}
                    kept = {
                        key: value.to(device) if key == "lr" and torch.is_tensor(value) else value
                        for key, value in kept.items()
                    }
                    parameters = model.parameters() if info.optim_cls is not torch.optim.Muon else [model.weight]
                    optimizer = info.optim_cls(parameters, **kept, **way)

                    def closure() -> Any:
                        optimizer.zero_grad()
                        loss = model(torch.ones(2, 4, device=device)).sum()
                        loss.backward(create_graph=False)
                        return loss

                    for _ in range(2):
                        optimizer.step(closure)
                    states = optimizer.state_dict()["state"]
                    held = [(at, name, value) for at, one in states.items() for name, value in one.items()]
                    return [f"{at} {name} {'' if name in ON_HOST else said(value, device)}" for at, name, value in held]

                yield f"optimizer {info.optim_cls.__name__} {number} {','.join(way)}", run


def of_a_call(call: Any, sample: Any, device: str, *, once: bool = False) -> list[str]:
    """What a call makes, and the gradients of its inputs."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    def moved(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return each.detach().to(device, copy=True).requires_grad_(each.requires_grad)
        return torch.device(device) if isinstance(each, torch.device) else device if each == "cpu" else each

    first = (sample.input, sample.args, sample.kwargs) if not once else (sample.args, sample.kwargs)
    if once:
        args, kwargs = tree_map(moved, first)
    else:
        own, rest, kwargs = tree_map(moved, first)
        args = (own, *rest)
    torch.manual_seed(1)
    inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    outputs = tree_leaves(call(*args, **kwargs))
    found = [said(each, device) + shared(each, inputs) for each in outputs]
    leaves = [each for each in inputs if each.requires_grad and each.is_leaf]
    wanted = [each for each in outputs if isinstance(each, torch.Tensor) and each.requires_grad]
    if leaves and wanted:
        ones = [torch.ones_like(each) for each in wanted]
        found += [f"grad {said(each, device)}" for each in torch.autograd.grad(wanted, leaves, ones, allow_unused=True)]
    return found


def said(value: Any, device: str) -> str:
    import torch

    if not isinstance(value, torch.Tensor):
        return f"{value!r}".replace(device, "D") if isinstance(value, bool | int | str) else type(value).__name__
    strided = value.layout is torch.strided and value.numel() > 0  # of nothing, strides say nothing
    strides = [step for size, step in zip(value.shape, value.stride(), strict=True) if size != 1] if strided else ""
    kept = value.tolist() if value.device.type != device and value.numel() < 50 else ""
    return (
        f"{tuple(value.shape)} {str(value.dtype)[6:]} {strides} {'D' if value.device.type == device else value.device}"
        f"{' grad' * value.requires_grad}{kept}"
    )


def shared(value: Any, inputs: list[Any]) -> str:
    """Which inputs a result shares its memory with."""
    import torch

    def memory(each: Any) -> Any:
        return each.untyped_storage()._cdata if each.layout is torch.strided else None

    if not isinstance(value, torch.Tensor) or memory(value) is None:
        return ""
    return "".join(f" of input {at}" for at, each in enumerate(inputs) if memory(each) == memory(value))


if __name__ == "__main__":
    sys.exit(main())
