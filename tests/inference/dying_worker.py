"""Two ranks of a tensor-parallel Llama; rank 1 dies between two steps. Rank 0 saves what it has."""

from __future__ import annotations

import os
import sys
import time
import warnings
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import tensor_parallel_worker as worker
import torch
import torch.distributed as dist


def run(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    model = worker.tensor_parallel(worker.llama(), rank, 2)
    prof = worker.profiler(folder, "x")
    prof.attach_model(model)
    prof.begin_run(bsz=2)
    try:
        with torch.inference_mode():
            for number in range(10):
                if rank == 1 and number == 5:
                    os._exit(9)
                with prof.step_timing_ctx():
                    prof.set_step_tokens(2)
                    model(worker.IDS)
    except RuntimeError as error:  # the connection is closed
        print(f"engine: {error}"[:80])
    begun = time.monotonic()
    prof.end_run()
    prof.save_all()
    (folder / "seconds").write_text(str(time.monotonic() - begun))
    os._exit(0)  # no farewell to a rank that is gone


if __name__ == "__main__":
    context = get_context("fork")
    ranks = [context.Process(target=run, args=(rank, Path(sys.argv[1]))) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    print([each.exitcode for each in ranks])
