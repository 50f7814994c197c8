"""lastStage_optimizer: AdamW over the last pipeline stage, which has the final norm and the output layer."""

from __future__ import annotations

from rooflight.sampling.registry import register
from rooflight.sampling.stages import stage_operator

register(stage_operator("lastStage_optimizer", "fused AdamW over encoders and output layer", last=True))
