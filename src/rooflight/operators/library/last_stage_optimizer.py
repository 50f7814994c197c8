"""lastStage_optimizer: AdamW over the last pipeline stage, which has the final norm and the output layer."""

from __future__ import annotations

from rooflight.operators.builders.optimizer_stage import stage_operator
from rooflight.operators.registry import register

register(stage_operator("lastStage_optimizer", "fused AdamW over encoders and output layer", last=True))
