"""A rank of the test with megatron-core's own layers: what it recorded, as JSON. Started by ``forked_ranks``."""

import json
import sys
from pathlib import Path

import forked_ranks

import rooflight as rl
from rooflight.costs.cost import OpCost
from rooflight.costs.registry import cost_of
from rooflight.hardware.network.collectives import kind_of

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


def find(rank: int, world: int, folder: Path) -> None:
    from megatron_layers import recorded_step

    session = recorded_step(sequence=6, batch=2, width=8, hidden=16)
    analysis = rl.analyze(session, "H100-SXM5-80GB")
    flops: dict[str, int] = {}
    for op in session.records:
        cost = cost_of(op.signature)
        if isinstance(cost, OpCost) and cost.matrix_flops:
            place = f"{op.module.path} {op.direction.label}"
            flops[place] = flops.get(place, 0) + cost.matrix_flops
    found = {
        "matrix_flops": flops,
        "sent": analysis.totals.bytes_sent,
        "collectives": [
            [op.signature.name, op.module.path, op.direction.label, op.signature.input_bytes]
            for op in session.records
            if kind_of(op.signature.name) is not None
        ],
        "classes": sorted({module.class_name for module in session.modules if module.path in ("up", "down")}),
        "unseen": [op.signature.name for op in session.records if op.signature.is_unseen],
        "uncosted": [op.name for op in analysis.coverage.uncosted],
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    forked_ranks.main(find)
