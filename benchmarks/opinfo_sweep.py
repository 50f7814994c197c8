"""Record torch's own samples for its own ops: what share of the ops dispatched has a cost, and which have none.

    .venv/bin/python benchmarks/opinfo_sweep.py [SAMPLES_PER_OP]

Every sample is also run without a recording: results and gradients must be the same bits.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from opinfo import Tally, check, opinfos, samples


def main() -> int:
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else None
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tally, wrong = Tally(), []
    start = time.perf_counter()
    for info in opinfos():
        for index, sample in enumerate(samples(info, limit)):
            try:
                tally.add(check(info, sample))
            except Exception as error:
                wrong.append(f"{info.name} {info.variant_test_name} sample {index}: {error!r}")
    print(f"op and sample pairs    {tally.pairs}, in {time.perf_counter() - start:.0f} s")
    print(f"calls costed           {tally.share_of_calls:.2%} of {sum(tally.calls.values())}")
    print(f"distinct ops costed    {tally.share_of_ops:.2%} of {len(tally.calls)}")
    for name, reason in sorted(tally.reasons.items()):
        print(f"  uncosted {name} ({tally.calls[name]} calls): {reason}")
    for line in wrong:
        print(f"  WRONG {line}")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
