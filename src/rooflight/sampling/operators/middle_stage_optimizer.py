"""middleStage_optimizer: AdamW over a pipeline stage between the first and the last."""

from __future__ import annotations

from rooflight.sampling.registry import register
from rooflight.sampling.stages import stage_operator

register(stage_operator("middleStage_optimizer", "fused AdamW over encoders"))
