"""What ``rooflight profile-decode`` runs: the generation loop of a decoder, with or without a draft, or an engine.

Each has one kind of run or several (``labels``). One run is a prefill and the decode steps after it. ``about`` has the
fields of ``WorkloadData`` that are the loop's.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from rooflight.hardware.machine.hardware import free_memory_bytes
from rooflight.records.quantity import Quantity
from rooflight.sources.workloads.build import build_model, torch_device, torch_dtype
from rooflight.sources.workloads.classes import ChosenClass, class_of
from rooflight.sources.workloads.errors import TargetError, need_transformers
from rooflight.sources.workloads.presets import Preset
from rooflight.sources.workloads.targets import ConfigFile, UserFunction, find_target
from rooflight.sources.workloads.user_code import made_by
from rooflight.studies.inference.generation.decoding import (
    CACHES,
    CacheKind,
    OnStep,
    check_sizes,
    check_temperature,
    decode,
)
from rooflight.studies.inference.generation.options import LoopOptions
from rooflight.studies.inference.generation.ragged_cache import RaggedCache
from rooflight.studies.inference.generation.speculative import check_acceptance, check_vocabularies, speculative_decode

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

    from rooflight.studies.inference.profiler import Profiler


OWN_LAYERS: Final = re.compile(r"self:([0-9]{1,6})")
"""A draft that is the first layers of the target, with its embeddings, last norm and head."""

_ROOM: Final = 1.2  # over weights and caches: activations, kernels' workspaces, allocators that round up


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedConfig:
    """A decoder before it is built."""

    name: str
    config: PreTrainedConfig
    chosen: ChosenClass

    def build(self, *, device: str, dtype: str) -> PreTrainedModel:
        """The model, ready to serve, with random weights that are the same in every run."""
        model: Any = build_model(self.config, device=device, dtype=dtype, chosen=self.chosen)
        built: PreTrainedModel = model.train(False)
        return built


def decoder_config(text: str, *, small: bool) -> NamedConfig:
    """The decoder that ``text`` names. Raises TargetError for anything else, such as an encoder."""
    need_transformers()
    target = find_target(text)
    if not isinstance(target, Preset | ConfigFile):
        raise TargetError(f"{text}: name a preset or a transformers config.json")
    if isinstance(target, Preset):
        config, name = (target.small(), f"{target.name} (reduced)") if small else (target.config(), target.name)
        chosen = class_of(config, target.kind)
    else:
        if small:
            raise TargetError("--small is for presets: a config has no reduced shapes")
        config, name = target.config(), target.name
        chosen = class_of(config)
    if chosen.kind != "causal-lm" or config.is_encoder_decoder:
        raise TargetError(f"{name} is {chosen.name}, {chosen.kind}: only decoders (causal-lm) generate tokens here")
    return NamedConfig(name=name, config=config, chosen=chosen)


def draft_config(text: str, target: NamedConfig, *, small: bool) -> NamedConfig:
    """The draft that ``text`` names, for a target: ``self:2`` is the target's first 2 layers."""
    own = OWN_LAYERS.fullmatch(text)
    if own is None:
        try:
            return decoder_config(text, small=small)
        except TargetError as error:
            raise TargetError(f"--draft {text}: {error}") from error
    layers, all_layers = int(own[1]), target.config.get_text_config().num_hidden_layers
    if not 1 <= layers < all_layers:
        raise TargetError(f"--draft {text}: {target.name} has {all_layers} layers; take from 1 to {all_layers - 1}")
    config = copy.deepcopy(target.config)
    part = config.get_text_config()
    part.num_hidden_layers = layers
    if getattr(part, "layer_types", None) and not isinstance(getattr(type(part), "layer_types", None), property):
        part.layer_types = part.layer_types[:layers]
    return NamedConfig(name=f"the first {layers} of its layers", config=config, chosen=target.chosen)


def share_weights(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Give a draft that is the target's first layers the target's own tensors: both read the same memory."""
    draft.load_state_dict({name: tensor for name, tensor in target.state_dict().items()
                           if name in draft.state_dict()}, assign=True)  # fmt: skip
    draft.tie_weights()


def check_memory(models: list[PreTrainedModel], *, batch: int, tokens: int, device: str, dtype: str) -> None:
    """Raise TargetError where weights and KV caches of ``tokens`` per sequence do not fit into free memory. ``models``
    are on the meta device. While a draft that is a part of its target is built, it has weights of its own.
    """
    size = torch_dtype(dtype).itemsize
    needed = 0
    for model in models:
        needed += size * sum(parameter.numel() for parameter in model.parameters())
        needed += size * batch * tokens * _cached_per_token(model.config)
    free = free_memory_bytes(torch_device(device).type)
    if free is not None and needed * _ROOM > free:
        raise TargetError(
            f"weights and KV cache need {Quantity(needed, 'B')}, {Quantity(free, 'B')} are free here: take a smaller "
            "--batch, --prompt or --new, another --dtype, or --small"
        )


def _cached_per_token(config: PreTrainedConfig) -> int:
    """Numbers that the KV cache holds of each token, all layers; 0 where the config does not say."""
    part: Any = config.get_text_config()
    queries, width, layers = (
        int(getattr(part, name, None) or 0) for name in ("num_attention_heads", "hidden_size", "num_hidden_layers")
    )
    heads = int(getattr(part, "num_key_value_heads", None) or queries)
    return 2 * layers * heads * int(getattr(part, "head_dim", None) or width // max(queries, 1))


PLAIN: Final = "plain"
SPECULATIVE: Final = "speculative"


class ModelLoop:
    """The loops of this room, on models with random weights."""

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
        self.target = self._models[0]
        if OWN_LAYERS.fullmatch(options.draft or ""):
            share_weights(self._models[1], self.target)
        generator = torch.Generator(options.device).manual_seed(options.seed or 0)
        vocabulary = target.config.get_text_config().vocab_size
        self._prompt = torch.randint(0, vocabulary, (options.batch, options.prompt), generator=generator,
                                     device=options.device)  # fmt: skip
        both = (PLAIN, SPECULATIVE) if options.baseline else (SPECULATIVE,)
        self.labels: tuple[str, ...] = (PLAIN,) if draft is None else both

    def attach(self, prof: Profiler) -> None:
        """Hook the target. The draft is one bucket of its own: its modules would count as the target's."""
        prof.attach_model(self.target)

    def run(self, label: str, prof: Profiler, on_step: OnStep) -> None:
        """Generate once."""
        self._generate(label, self._prompt, self._options.new, prof, on_step)

    def record(self, prof: Profiler, kv_length: int) -> None:
        """A prefill of so many tokens, and one step."""
        prompt = self._prompt[:, :1].expand(-1, kv_length)
        self._generate(self.labels[-1], prompt, 2, prof, None)

    def _generate(self, label: str, prompt: Tensor, new: int, prof: Profiler, on_step: OnStep | None) -> None:
        seed = self._options.seed or 0
        common: dict[str, Any] = {"temperature": self._temperature, "seed": seed, "profiler": prof, "on_step": on_step}
        if label == PLAIN:
            decode(self.target, prompt, new, cache=self._cache, **common)
        else:
            acceptance = self._options.acceptance
            target, draft = self._models
            speculative_decode(target, draft, prompt, new, gamma=self._gamma, acceptance=acceptance, **common)

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
        check_memory(empty, batch=options.batch, tokens=options.prompt + options.new + self._gamma,
                     device=options.device, dtype=self._dtype)  # fmt: skip

    def _notes(self) -> list[str]:
        notes = [each.chosen.note for each in self._named if each.chosen.note]
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

    def __init__(self, text: str, function: UserFunction, options: LoopOptions) -> None:
        options.refuse(
            f"no effect on {text}: set it inside the function",
            ("draft", "gamma", "acceptance", "temperature", "seed", "cache", "dtype", "small"),
        )
        self._text, self._options = text, options
        made = made_by(function.path, function.name, makes="engine")
        self._engine, self._run = _engine_of(made, text)
        model = self._engine if isinstance(self._engine, torch.nn.Module) else getattr(self._engine, "model", None)
        self.model_alone = model if isinstance(model, torch.nn.Module) else None
        self._not_hooked = ""

    def attach(self, prof: Profiler) -> None:
        """Hook its model's modules and its methods. Without known methods it opens its steps itself."""
        if self.model_alone is not None:
            prof.attach_model(self.model_alone)
        try:
            prof.attach_engine(self._engine)
        except ValueError as error:
            self._not_hooked = str(error)

    def run(self, label: str, prof: Profiler, on_step: OnStep) -> None:  # noqa: ARG002 - the engine's own steps
        """Run the engine once."""
        options = self._options
        self._run(batch=options.batch, prompt_tokens=options.prompt, new_tokens=options.new)

    def about(self) -> dict[str, Any]:
        """What is known of it."""
        found = list(self.model_alone.parameters()) if self.model_alone is not None else []
        unknown = dict.fromkeys(
            ("draft", "draft_parameters", "gamma", "assumed_acceptance", "temperature", "cache", "seed")
        )
        return unknown | {
            "target": self._text,
            "model_class": type(self._engine if self.model_alone is None else self.model_alone).__name__,
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


def _engine_of(made: Any, text: str) -> tuple[Any, Callable[..., Any]]:
    engine, run = made if isinstance(made, tuple) and len(made) == 2 else (made, getattr(made, "run", None))
    if engine is None or not callable(run):
        raise TargetError(
            f"{text} returned {type(made).__name__}: return an engine with a method run(batch, prompt_tokens, "
            "new_tokens), or (engine, function)"
        )
    try:
        inspect.signature(run).bind(batch=1, prompt_tokens=1, new_tokens=1)
    except TypeError as error:
        raise TargetError(f"{text}: the engine cannot be run with batch, prompt_tokens, new_tokens: {error}") from error
    except ValueError:  # a builtin without a signature
        pass
    return engine, run
