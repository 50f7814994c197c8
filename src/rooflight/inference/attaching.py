"""Attaching a profiler to models and engines, and detaching it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rooflight.inference.config import ProfilerConfig

if TYPE_CHECKING:
    from rooflight.inference.engine_hooks import EngineHooks
    from rooflight.inference.engine_mapping import EngineMapping
    from rooflight.inference.model_hooks import ModelHooks
    from rooflight.inference.profiler import Profiler


class Attaching:
    """The part of a ``Profiler`` that hooks what it measures."""

    disabled: bool
    cfg: ProfilerConfig
    _models: ModelHooks | None = None
    _engines: EngineHooks | None = None

    def attach_model(self, model: Any, use_gated_lora: bool = False) -> None:
        """Open buckets around the modules of a model, by the names that transformers gives them, until ``detach()``.

        Several models can be attached, as a target and its draft. ``use_gated_lora``: time LoRA adapters apart, in
        ``<bucket>.lora``. Raises ValueError if this is no ``torch.nn.Module`` or is attached already. Without
        ``model_profiling`` nothing is put into the model.
        """
        if self.disabled or not self.cfg.model_profiling:
            return
        if self._models is None:
            from rooflight.inference.model_hooks import ModelHooks  # loads torch

            self._models = ModelHooks(cast("Profiler", self))
        self._models.attach(model, lora=use_gated_lora)

    def attach_engine(self, engine: Any, mapping: EngineMapping | str | None = None) -> None:
        """Make runs, steps, buckets and facts of steps of the calls of an engine's methods, until ``detach()``.

        ``mapping``: an ``EngineMapping``, the name of one, or None for that of the engine's class. Raises ValueError if
        there is none, if methods are missing or cannot be timed, and for an engine that is attached already.
        """
        if self.disabled:
            return
        if self._engines is None:
            from rooflight.inference.engine_hooks import EngineHooks

            self._engines = EngineHooks(cast("Profiler", self))
        self._engines.attach(engine, mapping)

    def detach(self) -> None:
        """Leave every attached model and engine as it was before. Does nothing if there is none."""
        for hooks in (self._models, self._engines):
            if hooks is not None:
                hooks.detach()
