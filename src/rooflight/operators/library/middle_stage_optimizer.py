"""middleStage_optimizer: AdamW over a pipeline stage between the first and the last."""

from __future__ import annotations

from rooflight.operators.builders.optimizer_stage import stage_operator
from rooflight.operators.registry import register

register(stage_operator("middleStage_optimizer", "fused AdamW over encoders"))
