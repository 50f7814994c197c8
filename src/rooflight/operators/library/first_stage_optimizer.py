"""firstStage_optimizer: AdamW over the first pipeline stage, which has the embedding."""

from __future__ import annotations

from rooflight.operators.builders.optimizer_stage import stage_operator
from rooflight.operators.registry import register

register(stage_operator("firstStage_optimizer", "fused AdamW over embedding and encoders", first=True))
