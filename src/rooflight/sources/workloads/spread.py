"""A step as a program: ``python -m rooflight.sources.workloads.spread TARGET OPTIONS``, as ``rooflight analyze`` runs
it where the GPUs are not. That of the user's own code is ``once``.

A preset or config on several GPUs is plain torch, which runs under torchrun too: ``DistributedDataParallel``,
``fully_shard`` over the blocks, ``parallelize_module`` by the plan that transformers has for the model, autocast with
float32 masters.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.workloads.errors import TargetError

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

WAYS: Final = ("ddp", "fsdp", "tp")
DESCRIPTION: Final = "ROOFLIGHT_STEP"
"""The variable of the environment that says what the step is, for who records it; of the user's own also its model's
class and notes, a line each, or why it failed.
"""
_STEPS: Final = 4
_STYLES: Final = {"colwise": "ColwiseParallel", "rowwise": "RowwiseParallel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a step is spread: over ``ddp`` or ``fsdp`` ranks, each of ``tp``; 1 is not at all."""

    ddp: int = 1
    fsdp: int = 1
    tp: int = 1

    @classmethod
    def read(cls, text: str, ranks: int) -> Layout:
        """The layout of ``fsdp``, ``tp=8`` or ``fsdp=4,tp=2`` on so many ranks; a way without a number takes those that
        are left. Raises ValueError for a word that is no way, and for numbers that do not multiply to the ranks.
        """
        ways: dict[str, int] = {}
        for word in filter(None, text.split(",")):
            name, _, number = word.partition("=")
            if name not in WAYS or name in ways or (number and not number.isdigit()):
                raise ValueError(f"--parallel {text}: write ddp, fsdp, tp=8, or fsdp=4,tp=2")
            ways[name] = int(number or 0)
        if "ddp" in ways and "fsdp" in ways:
            raise ValueError(f"--parallel {text}: weights are copied (ddp) or sharded (fsdp), not both")
        taken = prod(number or 1 for number in ways.values())
        if list(ways.values()).count(0) == 1 and ranks % taken == 0:
            ways = {name: number or ranks // taken for name, number in ways.items()}
            taken = ranks
        if taken != ranks:
            raise ValueError(f"--parallel {text}: {taken} ranks, and there are {ranks}")
        return cls(**ways)

    @property
    def text(self) -> str:
        """``, fsdp=4, tp=2``; empty for one rank."""
        return "".join(f", {way}={number}" for way in WAYS if (number := getattr(self, way)) > 1)

    def refuse_for(self, config: Any, name: str) -> None:
        """Raise ValueError where the heads of a model cannot be split."""
        for what in ("num_attention_heads", "num_key_value_heads"):
            heads = getattr(config, what, None)
            if heads and heads % self.tp:
                raise ValueError(f"--parallel tp={self.tp}: {name} has {heads} {what}, which it does not divide")


def main() -> None:
    """Make the step and run it a few times."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="preset, config.json, train.py:function, or problem.py")
    parser.add_argument("--step", default="train")
    parser.add_argument("--batch", type=int, help="sequences of each rank's share of the data")
    parser.add_argument("--seq", type=int)
    parser.add_argument("--dtype")
    parser.add_argument("--optimizer")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--mixed", action="store_true", help="float32 masters, bfloat16 products by autocast")
    parser.add_argument("--parallel", default="", help="ddp, fsdp, tp=8, fsdp=4,tp=2")
    parser.add_argument("--inputs", help="function of the file that makes the inputs of its function")
    given = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    from rooflight.sources.workloads.build import quiet_transformers
    from rooflight.sources.workloads.targets import ProblemFile, UserFunction, find_target

    if isinstance(kind := find_target(given.target), UserFunction | ProblemFile):
        _run_own(given, {"step": given.step, "device": "cuda"} if isinstance(kind, ProblemFile) else {})
        return
    with quiet_transformers():
        try:
            step = _made(given)
        except ValueError as error:
            sys.exit(f"rooflight: {error}")
        for _ in range(_STEPS):
            step()


def _run_own(given: argparse.Namespace, options: dict[str, Any]) -> None:
    from rooflight.sources.workloads.errors import RunFailed
    from rooflight.sources.workloads.targets import open_target
    from rooflight.sources.workloads.user_code import refuse_pending

    try:
        step = open_target(given.target, inputs=given.inputs, optimizer=given.optimizer, **options)
        if not step.has_run:
            refuse_pending(step.run(), given.target)
        os.environ[DESCRIPTION] = "\n".join((step.description, step.model_class, *step.notes))
        once(step.run)
    except (TargetError, RunFailed) as error:
        os.environ[DESCRIPTION] = str(error)
        sys.exit(1)


def once(step: Callable[[], Any]) -> None:
    """The step that is recorded."""
    step()


def _made(given: argparse.Namespace) -> Any:
    import torch

    from rooflight.sources.workloads.build import make_optimizer
    from rooflight.sources.workloads.specs import checked_spec
    from rooflight.sources.workloads.targets import ConfigFile, find_target

    layout = Layout.read(given.parallel, int(os.environ.get("WORLD_SIZE", "1")))
    found = find_target(given.target)
    target, name = (found.config(), found.name) if isinstance(found, ConfigFile) else (given.target, "")
    spec = checked_spec(
        target, name=name, step=given.step, batch=given.batch, seq=given.seq, device="meta",
        dtype="float32" if given.mixed else given.dtype, optimizer=given.optimizer, small=given.small,
    )  # fmt: skip
    layout.refuse_for(spec.config, spec.name)
    model = spread(spec.build(), layout, mixed=given.mixed)
    inputs = replace(spec, device=torch.device("cuda")).inputs()
    arguments, ranks = dict(inputs.arguments), layout.ddp * layout.fsdp * layout.tp
    kind = "mixed precision" if given.mixed else str(spec.dtype).removeprefix("torch.")
    where = f" on each of {ranks} GPUs" if ranks > 1 else ""
    os.environ[DESCRIPTION] = f"{spec.name}: {spec.step} step, {inputs.sizes}{where}, {kind}{layout.text}"
    if "use_cache" in spec.chosen.accepted:
        arguments["use_cache"] = False
    if spec.step != "train":
        model.eval()
        return torch.no_grad()(lambda: model(**arguments))
    optimizer = make_optimizer(spec.optimizer, model, with_state=False)
    sharded = layout.fsdp > 1

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16) if given.mixed and not sharded else nullcontext():
            loss = model(**arguments).loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def spread(model: Any, layout: Layout, *, mixed: bool) -> Any:
    """The model on its ranks, empty, on ``cuda``. Raises TargetError for a model that has no plan for ``tp``."""
    import torch
    import torch.distributed as dist

    if layout == Layout():
        return _emptied(model)
    if not dist.is_initialized():
        dist.init_process_group("nccl")
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (max(layout.ddp, layout.fsdp), layout.tp), mesh_dim_names=("data", "tp"))
    if layout.tp > 1:
        _split(model, mesh["tp"])
    if layout.fsdp > 1:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else None
        how: dict[str, Any] = {"mesh": mesh["data"], **({"mp_policy": policy} if policy else {})}
        for block in _blocks(model):
            fully_shard(block, **how)
        fully_shard(model, **how)
    _emptied(model, tied=layout.tp == 1)
    if layout.ddp > 1:
        return torch.nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group("data"))
    return model


def _emptied(model: Any, *, tied: bool = True) -> Any:
    """The model on ``cuda``. torch makes two weights there of one that two modules share."""
    model.to_empty(device="cuda")
    if tied:
        model.tie_weights()
    return model


def _blocks(model: Any) -> list[nn.Module]:
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _split(model: Any, mesh: DeviceMesh) -> None:
    from fnmatch import fnmatch

    from torch.distributed.tensor import parallel

    plan = {name: _STYLES[style] for name, style in (model.tp_plan or {}).items() if style in _STYLES}
    if not plan:
        raise TargetError(f"{type(model).__name__} has no plan for tensor parallelism: take fsdp or ddp")
    styles = {
        name: getattr(parallel, style)()
        for name, _ in model.named_modules()
        for pattern, style in plan.items()
        if fnmatch(name, pattern)
    }
    parallel.parallelize_module(model, mesh, styles)


if __name__ == "__main__":
    main()
