"""ProfilerConfig: the profiler's settings; and the buckets that have a name and a place of their own in its reports."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

import numpy as np
from msgspec import field
from msgspec.structs import asdict, fields, force_setattr

from rooflight.records.document import Fields
from rooflight.records.visible import visible


class Domain(StrEnum):
    """Whose time a bucket is. Each domain divides the step by itself."""

    MODEL = "model"
    ENGINE = "engine"


MODEL_BUCKET_ORDER: Final = (
    "prepare",
    "attn.mask",
    "embed",
    "attn.qkv_proj",
    "attn.qkv_proj.lora",
    "attn.qk_norm",
    "attn.rope",
    "attn.compute",
    "attn.o_proj",
    "attn.o_proj.lora",
    "mlp.router",
    "mlp.gate_up_proj",
    "mlp.gate_up_proj.lora",
    "mlp.act",
    "mlp.experts",
    "mlp.down_proj",
    "mlp.down_proj.lora",
    "norm",
    "residual",
    "lm_head",
    "logits",
    "comm.all_reduce",
    "comm.reduce_scatter",
    "comm.all_gather",
    "comm.all_to_all",
    "comm.broadcast",
)
"""Buckets of the model, in the order in which a decoder runs them."""

ENGINE_BUCKET_ORDER: Final = (
    "schedule",
    "inputs",
    "prefill",
    "decode",
    "mixed",
    "draft",
    "draft_and_verify",
    "verify",
    "sampler",
    "postproc",
    "kv.allocate",
    "kv.gather",
    "kv.insert",
    "kv.delete",
    "kv.swap",
    "comm.all_reduce",
    "comm.reduce_scatter",
    "comm.all_gather",
    "comm.all_to_all",
    "comm.broadcast",
)
"""Buckets of the engine around the model, in the order of a step."""

_CALLED: Final = {
    "schedule": "schedule",
    "inputs": "prepare_inputs pre_prefill pre_draft pre_decode pre_draft_and_verify interleave_mask_tokens",
    "draft": "draft propose",
    "draft_and_verify": "draft_and_verify",
    "verify": "verify evaluate_posterior",
    "sampler": "sampler sample sample_tokens sampling sampler_draft",
    "postproc": "postproc postprocess post_process detokenize force_budget",
    "kv.allocate": "kv_allocate allocate_kv",
    "kv.gather": "kv_gather gather_kv collate_kv",
    "kv.insert": "kv_insert insert_kv",
    "kv.delete": "kv_delete delete_kv free_kv evict",
    "kv.swap": "kv_swap swap_in swap_out",
}

ENGINE_METHODS: Final = {name: bucket for bucket, names in _CALLED.items() for name in names.split()}
"""Names that engines give the phases of a step, with the buckets of these."""

ORDERS: Final[Mapping[Domain, Sequence[str]]] = {
    Domain.MODEL: MODEL_BUCKET_ORDER,
    Domain.ENGINE: ENGINE_BUCKET_ORDER,
}

REDUCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "mean": np.mean,
    "max": np.max,
    "p50": lambda lengths: np.percentile(lengths, 50),
    "p90": lambda lengths: np.percentile(lengths, 90),
    "sum": np.sum,
}
"""How the KV lengths of a batch become the one of the step."""


class ProfilerConfig(Fields, frozen=True, kw_only=True):
    """Settings of a profiler. Raises ValueError, which names the field, for a value that it cannot have.

    ``strict_sync``: wait for the device at both ends of each step; False adds no wait. ``dist_barrier``: a
    ``torch.distributed.barrier()`` before and after each step, outside its time. ``num_total_runs`` is for reports
    alone. ``kv_bins`` are the lower edges of the KV-length bins; the last is open. ``slo_...``: latencies that requests
    should have at most, for goodput.
    """

    output_dir: str = "profiler_out"
    collect_on_rank0_only: bool = True
    strict_sync: bool = True
    dist_barrier: bool = False
    model_profiling: bool = False
    engine_profiling: bool = False
    num_total_runs: int = 10
    warmup_runs: int = 1
    print_per_run: bool = True
    run_name: str | None = None
    kv_len_reduce: str = "mean"
    kv_bins: list[int] = field(default_factory=lambda: [0, 512, 1024, 2048, 4096, 8192, 16384])
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    slo_e2e_ms: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            force_setattr(self, each.name, _READERS[each.type](each.name, getattr(self, each.name)))
        for name in ("num_total_runs", "warmup_runs"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give a number of runs from 0 on")
        if 0 < self.num_total_runs <= self.warmup_runs:
            runs = f"warmup_runs is {self.warmup_runs} of num_total_runs {self.num_total_runs}"
            raise ValueError(f"{runs}: no run is left to report, give fewer to warm up")
        for name in ("slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: give milliseconds above 0")
        if self.kv_len_reduce not in REDUCTIONS:
            raise ValueError(f'kv_len_reduce is "{self.kv_len_reduce}": give one of {", ".join(REDUCTIONS)}')
        if not self.kv_bins or self.kv_bins[0] < 0 or any(low >= high for low, high in pairwise(self.kv_bins)):
            raise ValueError(f"kv_bins is {self.kv_bins}: give lengths from 0 on, each above the one before")
        if not self.output_dir or "\0" in self.output_dir:
            raise ValueError(f"output_dir is {self.output_dir!r}: name a folder")

    @classmethod
    def from_args(cls, args: Any = None, prefix: str = "prof_") -> ProfilerConfig:
        """The settings in a namespace, a mapping or a config; each by its name, or by its name after ``prefix``, which
        counts more. None, and what is not there, is the default; what is no setting is left alone.

        ``backend_profiling`` is another name of ``engine_profiling``: either switches it on. Values may be texts, as
        of a command line: ``"true"``, ``"3"``, ``"0,512,1024"``. Raises ValueError as the class does.
        """
        if isinstance(args, cls):
            return args
        given = given_in(args)
        found: dict[str, Any] = {}
        for each in fields(cls):
            value = _value(given, each.name, prefix)
            if value is not None:
                found[each.name] = value
        alias, name = "backend_profiling", "engine_profiling"
        other = _value(given, alias, prefix)
        if other is not None:
            found[name] = _flag(alias, other) or _flag(name, found.get(name, False))
        return cls(**found)


def given_in(args: Any) -> Mapping[str, Any]:
    """The values in a namespace, a mapping, or None. Raises TypeError for what has none."""
    if args is None:
        return {}
    if isinstance(args, Mapping):
        return args
    if isinstance(args, ProfilerConfig):
        return asdict(args)
    try:
        return dict(vars(args))
    except TypeError:
        raise TypeError(
            f"settings come in a namespace, a dict or a ProfilerConfig, not in {type(args).__name__}"
        ) from None


def _value(given: Mapping[str, Any], name: str, prefix: str) -> Any:
    value = given.get(f"{prefix}{name}")
    return given.get(name) if value is None else value


def _flag(name: str, value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    found = words.get(str(value).strip().lower()) if isinstance(value, bool | int | str) else None
    if found is None:
        raise ValueError(f"{name} is {value!r}: give True or False")
    return found


def _number(name: str, value: Any, kind: Callable[[Any], Any], what: str) -> Any:
    try:
        number = kind(value)
        if isinstance(value, bool) or (kind is int and not isinstance(value, str) and number != value):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}: give {what}") from None
    return number


def _whole(name: str, value: Any) -> int:
    return int(_number(name, value, int, "a whole number"))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) and not hasattr(value, "__fspath__"):
        raise ValueError(f"{name} is {value!r}: give a text")
    return str(value)


def _edges(name: str, value: Any) -> list[int]:
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    try:
        return [_whole(name, part) for part in parts]
    except TypeError:
        raise ValueError(f"{name} is {value!r}: give a list of lengths") from None


_READERS: Final[Mapping[Any, Callable[[str, Any], Any]]] = {
    str: _text,
    bool: _flag,
    int: _whole,
    str | None: lambda name, value: None if value is None else _text(name, value),
    list[int]: _edges,
    float | None: lambda name, value: None if value is None else _number(name, value, float, "milliseconds"),
}
"""What makes a field's value of what was given, by the field's type."""


_MOST_BYTES: Final = 120  # of the 255 that file systems allow
_SIGNS: Final = frozenset("._-+=@,()[]~ ")
_ABOUT: Final = (("model", "model_name", "model_path"), ("batch_size", "bsz", "batch"))


def generate_run_name(args: Any = None) -> str:
    """A new name from the model and batch size in ``args`` (where it has them), the local time, and four letters that
    make it unique: ``llama-tiny_b8_20260131-142501_9f3c``.
    """
    given = given_in(args)
    models, batches = ([given[name] for name in names if given.get(name) is not None] for names in _ABOUT)
    parts = [str(models[0]).rstrip("/").rpartition("/")[2]] if models and isinstance(models[0], str) else []
    parts += [f"b{batches[0]}"] if batches else []
    when = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return folder_name("_".join([*(parts or ["run"]), when, secrets.token_hex(2)]))


def folder_name(name: str) -> str:
    """A name as that of one folder: letters, digits and a few signs stay, anything else (a ``/``, a control, a first
    ``.``) is ``_``; at most 120 bytes. ``"meta-llama/Llama-3"`` is ``meta-llama_Llama-3``.
    """
    safe = "".join(c if visible(c) == c and (c.isalnum() or c in _SIGNS) else "_" for c in name.strip())
    safe = safe.encode()[:_MOST_BYTES].decode(errors="ignore").strip()
    return f"_{safe[1:]}" if not safe or safe[0] in ".~" else safe
