"""A rank of a Llama that transformers makes tensor-parallel (``tp_plan="auto"``): what its profiler saw."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from pathlib import Path

import forked_ranks
import torch
import torch.distributed as dist
import transformers
from tensor_parallel_worker import IDS, llama, profiler, state

from rooflight.studies.inference.config import Domain


def run(rank: int, world: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.disable_progress_bar()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    if rank == 0:
        llama().save_pretrained(folder / "model")
    dist.barrier()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", tp_plan="auto").eval()
    before = state()
    prof = profiler(folder, "tp_plan")
    prof.attach_model(model)
    logits = None

    def steps(count: int) -> None:
        nonlocal logits
        prof.begin_run(bsz=2)
        for _ in range(count):
            with torch.inference_mode(), prof.step_timing_ctx():
                prof.set_step_tokens(2)
                prof.set_step_seq_len(0)
                logits = model(IDS, use_cache=False).logits
        prof.end_run()

    steps(3)
    with prof.record_steps("H100-SXM5-80GB"):
        steps(1)
    prof.detach()
    undone = state() == before
    (step,) = prof.bounds.steps
    session = step.analyses[Domain.MODEL].session
    names = Counter(session.signatures[number].name for number in session.columns.signature[session.counted].tolist())
    folder_saved = prof.save_all()
    weights = {name: tuple(getattr(each, "to_local", lambda each=each: each)().shape)
               for name, each in model.named_parameters()}  # fmt: skip
    found = {
        "same": bool(torch.allclose(logits, llama()(IDS).logits, atol=1e-5)),
        "undone": undone,
        "ops": {name: count for name, count in names.items() if "c10d" in name},
        "weights": weights,
        "summary": json.loads((folder_saved / "summary.json").read_text()),
    }
    (folder / f"{world}_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    forked_ranks.main(run)
