"""What ``rooflight profile-decode`` runs: the generation loop of a decoder, with or without a draft, or an engine.

Each has one kind of run or several (``labels``). One run is a prefill and the decode steps after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from rooflight.inference.decode_models import (
    OWN_LAYERS,
    NamedConfig,
    check_memory,
    decoder_config,
    draft_config,
    share_weights,
)
from rooflight.inference.decoding import CACHES, CacheKind, OnStep, check_sizes, check_temperature, decode
from rooflight.inference.ragged_cache import RaggedCache
from rooflight.inference.speculative_decoding import check_acceptance, check_vocabularies, speculative_decode
from rooflight.workloads.errors import TargetError
from rooflight.workloads.targets import UserFunction
from rooflight.workloads.user_code import made_by

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from rooflight.inference.profiler import Profiler

PLAIN: Final = "plain"
SPECULATIVE: Final = "speculative"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOptions:
    """What to run. None leaves a choice to its default."""

    batch: int = 8
    prompt: int = 512
    new: int = 128
    draft: str | None = None
    gamma: int | None = None
    acceptance: float | None = None
    baseline: bool = True
    temperature: float | None = None
    seed: int | None = None
    cache: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    small: bool = False

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("prompt", 1), ("new", 2)):
            value = getattr(self, name)
            if value < least:
                why = ": the prefill makes the first token, decode steps the others" if name == "new" else ""
                raise TargetError(f"--{name} {value}: give a number from {least} on{why}")
        if self.draft is None:
            self.refuse(("gamma", "acceptance"), "no effect without --draft")
            if not self.baseline:
                raise TargetError("--no-baseline: no effect without --draft")

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        """Raise TargetError if one of these options is given."""
        given = [f"--{field.name}" for field in fields(self)
                 if field.name in names and getattr(self, field.name) not in (None, False)]  # fmt: skip
        if given:
            raise TargetError(f"{', '.join(given)}: {why}")


class Loop(Protocol):
    """Something that generates."""

    labels: tuple[str, ...]
    records: bool  # whether ``record`` can be called

    def attach(self, prof: Profiler) -> None:
        """Let the profiler see the loop's models."""

    def run(self, label: str, prof: Profiler, told: OnStep) -> None:
        """Run once."""

    def record(self, prof: Profiler, kv_length: int) -> None:
        """Run a decode step after ``kv_length`` cached tokens, for a profiler that records it."""

    @property
    def model_alone(self) -> torch.nn.Module | None:
        """The model, where no step of the loop can be asked for, so that only its own steps can be recorded."""

    def about(self) -> dict[str, Any]:
        """The fields of ``WorkloadData`` that are the loop's."""


class ModelLoop:
    """The loops of this room, on models with random weights."""

    records = True
    model_alone = None

    def __init__(self, text: str, options: LoopOptions, *, progress: Callable[[str], None]) -> None:
        self._options = options
        self._temperature = 1.0 if options.temperature is None else options.temperature
        self._gamma = 4 if options.gamma is None else options.gamma
        self._dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
        check_temperature(self._temperature)
        self._cache = _cache(options)
        target = decoder_config(text, small=options.small)
        draft = None if options.draft is None else draft_config(options.draft, target, small=options.small)
        self._named: list[NamedConfig] = [target] if draft is None else [target, draft]
        self._refuse_what_cannot_be()
        progress("building the model")
        self._models = [each.build(device=options.device, dtype=self._dtype) for each in self._named]
        if OWN_LAYERS.fullmatch(options.draft or ""):
            share_weights(self._models[1], self._models[0])
        generator = torch.Generator(options.device).manual_seed(options.seed or 0)
        vocabulary = target.config.get_text_config().vocab_size
        self._prompt = torch.randint(0, vocabulary, (options.batch, options.prompt), generator=generator,
                                     device=options.device)  # fmt: skip
        both = (PLAIN, SPECULATIVE) if options.baseline else (SPECULATIVE,)
        self.labels: tuple[str, ...] = (PLAIN,) if draft is None else both

    @property
    def target(self) -> PreTrainedModel:
        """The model whose tokens are generated."""
        return self._models[0]

    def attach(self, prof: Profiler) -> None:
        """Hook the target. The draft is one bucket of its own: its modules would count as the target's."""
        prof.attach_model(self.target)

    def run(self, label: str, prof: Profiler, told: OnStep) -> None:
        """Generate once."""
        self._generate(label, self._prompt, self._options.new, prof, told)

    def record(self, prof: Profiler, kv_length: int) -> None:
        """A prefill of so many tokens, and one step."""
        prompt = self._prompt[:, :1].expand(-1, kv_length)
        self._generate(self.labels[-1], prompt, 2, prof, None)

    def _generate(self, label: str, prompt: Tensor, new: int, prof: Profiler, told: OnStep | None) -> None:
        options, seed = self._options, self._options.seed or 0
        if label == PLAIN:
            decode(
                self.target,
                prompt,
                new,
                temperature=self._temperature,
                seed=seed,
                cache=self._cache,
                profiler=prof,
                on_step=told,
            )
            return
        speculative_decode(
            self._models[0],
            self._models[1],
            prompt,
            new,
            gamma=self._gamma,
            temperature=self._temperature,
            seed=seed,
            acceptance=options.acceptance,
            profiler=prof,
            on_step=told,
        )

    def about(self) -> dict[str, Any]:
        """The models, and how tokens are chosen."""
        options, drafted = self._options, len(self._models) > 1
        parameters = [sum(each.numel() for each in model.parameters()) for model in self._models]
        return {
            "target": self._named[0].name,
            "model_class": type(self.target).__name__,
            "parameters": parameters[0],
            "draft": self._named[1].name if drafted else None,
            "draft_parameters": parameters[1] if drafted else None,
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "gamma": self._gamma if drafted else None,
            "assumed_acceptance": options.acceptance,
            "temperature": self._temperature,
            "cache": self._cache,
            "seed": options.seed or 0,
            "notes": tuple(self._notes()),
        }

    def _refuse_what_cannot_be(self) -> None:
        """Raise ValueError before a model takes memory, and minutes to build."""
        options = self._options
        empty = [each.build(device="meta", dtype="bfloat16") for each in self._named]
        prompt = torch.empty((options.batch, options.prompt), dtype=torch.long, device="meta")
        for model in empty:
            check_sizes(model, prompt, options.new)
        if len(empty) > 1:
            check_vocabularies(*empty)
            check_acceptance(self._gamma, options.acceptance)
        if self._cache == "ragged":
            for model in empty:
                RaggedCache(model, batch=options.batch, capacity=1)
        check_memory(self._named, batch=options.batch, tokens=options.prompt + options.new + self._gamma,
                     device=options.device, dtype=self._dtype)  # fmt: skip

    def _notes(self) -> list[str]:
        notes = [note for each in self._named for note in each.notes]
        if len(self._models) == 1:
            return notes
        assumed = self._options.acceptance
        if assumed is not None:
            notes.append(
                f"Drafted tokens are accepted at random, each with probability {assumed:g} (--acceptance): all work is "
                "done and timed, but tokens are not the target's."
            )
        else:
            notes.append(
                "Weights are random, so that the acceptance rate is not that of trained models: --acceptance sets it."
            )
        return notes


class EngineLoop:
    """A user's engine, from a function of theirs, which returns it, or it and what runs it."""

    labels: tuple[str, ...] = ("engine",)
    records = False

    def __init__(self, text: str, function: UserFunction, options: LoopOptions) -> None:
        options.refuse(
            ("draft", "gamma", "acceptance", "temperature", "seed", "cache", "dtype", "small"),
            f"no effect on {text}: set it inside the function",
        )
        self._text, self._options = text, options
        made = made_by(function.path, function.name, makes="engine")
        self._engine, self._run = _engine_of(made, text)
        model = self._engine if isinstance(self._engine, torch.nn.Module) else getattr(self._engine, "model", None)
        self._model = model if isinstance(model, torch.nn.Module) else None
        self._not_hooked = ""

    def attach(self, prof: Profiler) -> None:
        """Hook its model's modules and its methods. Without known methods it opens its steps itself."""
        if self._model is not None:
            prof.attach_model(self._model)
        try:
            prof.attach_engine(self._engine)
        except ValueError as error:
            self._not_hooked = str(error)

    def run(self, label: str, prof: Profiler, told: OnStep) -> None:  # noqa: ARG002 - the engine's own steps
        """Run the engine once."""
        options = self._options
        self._run(batch=options.batch, prompt_tokens=options.prompt, new_tokens=options.new)

    def record(self, prof: Profiler, kv_length: int) -> None:
        """Nobody can ask an engine for a step: it chooses them itself."""
        raise NotImplementedError

    @property
    def model_alone(self) -> torch.nn.Module | None:
        """The engine's model."""
        return self._model

    def about(self) -> dict[str, Any]:
        """What is known of it."""
        found = list(self._model.parameters()) if self._model is not None else []
        unknown = dict.fromkeys(
            ("draft", "draft_parameters", "gamma", "assumed_acceptance", "temperature", "cache", "seed")
        )
        return unknown | {
            "target": self._text,
            "model_class": type(self._engine if self._model is None else self._model).__name__,
            "parameters": sum(each.numel() for each in found) or None,
            "dtype": str(found[0].dtype).removeprefix("torch.") if found else None,
            "notes": (f"The engine opens its steps itself: {self._not_hooked}",) if self._not_hooked else (),
        }


def _cache(options: LoopOptions) -> CacheKind:
    """The cache of plain runs; beside a draft that of speculative ones, so that the two differ in nothing else."""
    if options.draft is not None:
        if options.cache not in (None, "ragged"):
            raise TargetError(f"--cache {options.cache}: no effect with --draft, whose cache is ragged")
        return "ragged"
    for known in CACHES:
        if known == (options.cache or "dynamic"):
            return known
    raise TargetError(f"--cache {options.cache}: give one of {', '.join(CACHES)}")


_WANTED: Final = "return an engine with a method run(batch, prompt_tokens, new_tokens), or (engine, function)"


def _engine_of(made: Any, text: str) -> tuple[Any, Callable[..., Any]]:
    """The engine, and what runs it once."""
    engine, run = made if isinstance(made, tuple) and len(made) == 2 else (made, getattr(made, "run", None))
    if engine is None or not callable(run):
        raise TargetError(f"{text} returned {type(made).__name__}: {_WANTED}")
    try:
        inspect.signature(run).bind(batch=1, prompt_tokens=1, new_tokens=1)
    except TypeError as error:
        raise TargetError(f"{text}: the engine cannot be run with batch, prompt_tokens, new_tokens: {error}") from error
    except ValueError:  # a builtin without a signature
        pass
    return engine, run
