"""firstStage_optimizer: AdamW over the first pipeline stage, which has the embedding."""

from __future__ import annotations

from rooflight.sampling.registry import register
from rooflight.sampling.stages import stage_operator

register(stage_operator("firstStage_optimizer", "fused AdamW over embedding and encoders", first=True))
