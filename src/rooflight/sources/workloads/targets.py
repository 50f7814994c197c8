"""Targets, as a user names them: a preset, a config.json, a function of their own, or a problem file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.workloads.errors import TargetError, first_words, need_torch, need_transformers
from rooflight.sources.workloads.presets import PRESETS, Preset, suggestion

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from rooflight.sources.workloads.steps import Step


_AT_LEAST_ONE: Final = frozenset(
    {
        *("vocab_size", "hidden_size", "n_embd", "d_model", "embed_dim", "embedding_size", "dim", "hidden_sizes"),
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "depths"),
        *("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads", "head_dim", "d_kv"),
        *("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"),
        *("intermediate_size", "d_ff", "ffn_dim", "state_size", "num_labels"),
        *("n_positions", "max_position_embeddings", "max_source_positions", "max_target_positions"),
        *("image_size", "patch_size", "num_channels", "num_frames", "temporal_patch_size", "spatial_merge_size"),
        *("num_mel_bins", "conv_dim", "conv_kernel", "conv_stride", "sampling_rate"),
    }
)
"""Fields that count parts which every model has; with 0 of them or fewer, some models are built and do no work."""
_MODULES: Final = frozenset(
    {
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "depths", "encoder_layers"),
        *("decoder_layers", "num_local_experts", "num_experts", "n_routed_experts", "num_codebooks"),
    }
)
_MOST_MODULES: Final = 10_000
"""Fields that count modules, which are made one by one on meta too: with millions of them that never ends."""
_MOST_LABELS: Final = 1_000_000
"""Of ``num_labels``, which transformers names one by one: with billions of them that takes all memory."""


def check_sizes(values: dict[str, Any], path: Path) -> None:
    """Raise TargetError for a field below 1 that counts heads, layers or the like, and for one of too many modules, at
    any depth.
    """
    for place, number in _numbers(values, "", _AT_LEAST_ONE):
        if number < 1:
            raise TargetError(f"{path}: {place} is {number}: it must be at least 1")
    for names, most in ((_MODULES, _MOST_MODULES), (frozenset({"num_labels"}), _MOST_LABELS)):
        for place, number in _numbers(values, "", names):
            if number > most:
                raise TargetError(f"{path}: {place} is {number}: it must be at most {most:,}")


def _numbers(value: Any, place: str, names: frozenset[str]) -> Iterator[tuple[str, int]]:
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        yield from _numbers(inner, f"{place}{name}.", names)
        if name in names:
            for number in inner if isinstance(inner, list) else (inner,):
                if isinstance(number, int) and not isinstance(number, bool):
                    yield f"{place}{name}", number


def check_heads(config: PreTrainedConfig, path: Path) -> None:
    """Raise TargetError if query heads cannot share the heads of keys and values evenly; on meta torch raises none."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        heads, shared = (getattr(part, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
        if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
            raise TargetError(f"{path}: {heads} attention heads cannot share {shared} key-value heads evenly")


def called(text: str) -> str:
    """What reports call a target: a config by its folder, or by its file where that is not config.json; of other paths
    the last part.
    """
    path = Path(text)
    if path.name == "config.json" or (path.suffix == "" and path.is_dir()):
        return (path if path.is_dir() else path.parent).resolve().name
    return path.stem if path.suffix == ".json" else path.name


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigFile:
    """A transformers config on disk. Its ``name`` is its folder's, or the file's own if that is not config.json."""

    path: Path

    @property
    def name(self) -> str:
        """What reports call it."""
        return called(str(self.path))

    def config(self) -> PreTrainedConfig:
        """The config as transformers reads it: offline, never running code from beside it."""
        return read_config(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class UserFunction:
    """A function in a Python file that makes a step."""

    path: Path
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemFile:
    """A Python file in KernelBench's form: Model, get_inputs, get_init_inputs."""

    path: Path


_SUFFIXES: Final = (".session", ".py", ".zip", ".gz", ".sqlite", ".nsys-rep", ".qdrep")
"""Of files that hold sessions or programs: no preset has such a name."""

Target = Preset | ConfigFile | UserFunction | ProblemFile


def find_target(text: str) -> Target:
    """The target that ``text`` names: a preset, a config.json (or the folder of one), ``path/to/train.py:function``, or
    a Python file with Model, get_inputs and get_init_inputs.

    Nothing is imported or built. Raises TargetError if it names none.
    """
    if (known := PRESETS.get(text.lower())) is not None:
        return known
    path, colon, function = text.rpartition(":")
    if colon and path.endswith(".py"):
        return UserFunction(path=_existing(Path(path)), name=function)
    if text.endswith(".py"):
        from rooflight.sources.workloads.problem import is_problem

        file = _existing(Path(text))
        return ProblemFile(path=file) if is_problem(file) else UserFunction(path=file, name="")
    if text.endswith(".json"):
        return ConfigFile(path=_existing(Path(text)))
    if (Path(text) / "config.json").is_file():
        return ConfigFile(path=Path(text) / "config.json")
    if "/" in text or Path(text).suffix in _SUFFIXES:
        if Path(text).is_dir():
            raise TargetError(f"{text} is a folder without a config.json")
        close = suggestion(text.rpartition("/")[2])  # of a model's name on the Hub
        raise TargetError(f"no file {text}" + (f": {close}" if close.endswith("?") else ""))
    hint = suggestion(text)
    end = "" if hint.endswith("?") else "."
    raise TargetError(
        f'unknown target "{text}": {hint}{end} Or pass a config.json or path/to/train.py:make_step'
        if text
        else "empty target: pass a preset, a config.json or path/to/train.py:make_step"
    )


def require_libraries(target: Target) -> None:
    """Import the libraries that make a target's step. Raises TargetError with the line to install those missing."""
    need_torch() if isinstance(target, UserFunction | ProblemFile) else need_transformers()


def open_target(
    text: str,
    *,
    step: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    optimizer: str | None = None,
    small: bool = False,
    inputs: str | None = None,
) -> Step:
    """The step that ``text`` names. None leaves an option to its default: step train, device meta, see make_step.

    A user's function takes no options but ``inputs`` (see load_step), a problem file takes step, optimizer and device;
    any other option is refused. Raises TargetError for every mistake that the user can mend. The step itself raises
    RunFailed.
    """
    target = find_target(text)
    if inputs is not None and not isinstance(target, UserFunction):
        raise TargetError(no_inputs(inputs))
    if isinstance(target, UserFunction | ProblemFile):
        options = {"batch": batch, "seq": seq, "dtype": dtype}
        if isinstance(target, UserFunction):
            options |= {"step": step, "optimizer": optimizer, "device": device}
        given = [f"--{name}" for name, value in options.items() if value is not None] + ["--small"] * small
        if given:
            place = "function" if isinstance(target, UserFunction) else "file"
            raise TargetError(f"{', '.join(given)}: no effect on {text}: set it inside the {place}")
        if isinstance(target, ProblemFile):
            from rooflight.sources.workloads.problem_step import load_problem

            return load_problem(target.path, device or "meta", step=step or "forward", optimizer=optimizer)
        from rooflight.sources.workloads.user_step import load_step

        return load_step(target.path, target.name, inputs)
    from rooflight.sources.workloads.steps import make_step

    return make_step(
        target.config() if isinstance(target, ConfigFile) else target,
        name=target.name if isinstance(target, ConfigFile) else "",
        step=step or "train",
        batch=batch,
        seq=seq,
        dtype=dtype,
        device=device or "meta",
        optimizer=optimizer,
        small=small,
    )


def no_inputs(name: str) -> str:
    """Why a target other than a user's function has no use for inputs."""
    return f"--inputs {name}: only a function of your own, file.py:function, takes inputs"


def read_config(path: Path) -> PreTrainedConfig:
    """The transformers config in a JSON file. Raises TargetError with one line when there is none in it."""
    values = _read_json(path)
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise TargetError(f'{path} names no "model_type": is it a transformers config?')
    transformers = need_transformers()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from rooflight.sources.workloads.build import quiet_transformers

    if model_type not in CONFIG_MAPPING:
        hint = " (code from a model's repository is never run)" if "auto_map" in values else ""
        named = f'"{first_words(model_type)}" in {path}{hint}'
        raise TargetError(f"transformers {transformers.__version__} knows no model_type {named}")
    check_sizes(values, path)
    # a checkpoint's quantization needs its weights; from random ones a model is built in the dtype asked for
    values.pop("quantization_config", None)
    try:
        with quiet_transformers():
            config: PreTrainedConfig = CONFIG_MAPPING[model_type].from_dict(values)
    except Exception as error:  # validation errors are of many types, some from huggingface_hub
        raise TargetError(f"transformers refuses {path}: {first_words(str(error)) or type(error).__name__}") from error
    check_heads(config, path)
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"cannot read {path}: {error}") from error
    except (ValueError, RecursionError) as error:  # also numbers of 5,000 digits, and 1,000 brackets
        raise TargetError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise TargetError(f"{path} holds no JSON object: is it a transformers config?")
    return values


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise TargetError(f"no file {path}")
    return path
