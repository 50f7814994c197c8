"""At which precision float32 products run: the run's settings, and the rules of the library that computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rooflight.costs.registry import traits_of
from rooflight.costs.traits import Float32Kind
from rooflight.devices.spec import THREE_TF32, DeviceSpec, Roofs
from rooflight.records.dtypes import precision_of
from rooflight.records.float32 import PRECISIONS, fact_name, setting_of
from rooflight.records.signature import COMPUTED_IN, OpSignature

_CUDA: Final = {Float32Kind.MATMUL: "cuda.matmul", Float32Kind.CONV: "cudnn.conv", Float32Kind.RNN: "cudnn.rnn"}
_ONEDNN: Final = {Float32Kind.MATMUL: "mkldnn.matmul", Float32Kind.CONV: "mkldnn.conv", Float32Kind.RNN: "mkldnn.rnn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Float32Rule:
    """The precision of one kind of float32 op, whose peak bounds it, and why it is that."""

    precision: str
    reason: str


@dataclass(frozen=True, slots=True)
class Float32Rules:
    """The rule of each kind of op, on one device under one session's settings. An op of which a trace shows what ran is
    bounded at that instead. ``has_tf32``: the device lists a TF32 peak; ``merged``: a compiler made attention of
    products, whose own kernels tell no more of it than that TF32 is allowed.
    """

    by_kind: Mapping[Float32Kind, Float32Rule]
    has_tf32: bool
    merged: bool = False

    def precision_of(self, op: OpSignature) -> str:
        """The precision at which an op's float32 products are bounded."""
        ran = op.attribute(COMPUTED_IN)
        if ran == "tfloat32" and self.has_tf32:
            return "tfloat32"
        if ran is not None and not self.merged:
            return "float32"
        return self.by_kind[traits_of(op.name).float32].precision

    def matrix_precision(self, op: OpSignature, dtype: str) -> str:
        """The precision at which an op's products of ``dtype`` are bounded; the dtype itself where none is known."""
        precision = precision_of(dtype) or dtype
        return self.precision_of(op) if precision == "float32" else precision

    @property
    def as_attention(self) -> Float32Rules:
        """The same where a compiler makes attention of products."""
        by_kind = {**self.by_kind, Float32Kind.MATMUL: self.by_kind[Float32Kind.ATTENTION]}
        return replace(self, by_kind=by_kind, merged=True)


def float32_rules(environment: Mapping[str, str], device: DeviceSpec) -> Float32Rules:
    """How float32 products run on ``device`` under a session's settings.

    NVIDIA: cuBLAS and cuDNN each have a setting of their own, and cuDNN's is TF32 unless switched off. Attention may
    run in a kernel that makes each float32 product of three TF32 ones whatever is set, from compute capability 8.0 on
    (CUTLASS's OpMultiplyAddFastF32, in torch's mem_eff_attention/gemm_kernel_utils.h). AMD: torch passes on only the
    setting of products, MIOpen computes in float32. Google: XLA makes a float32 product in one bfloat16 pass
    (``jax_default_matmul_precision``). CPUs: oneDNN's settings. A precision without a peak on the device is not used.
    """
    return Float32Rules(
        {kind: _rule(kind, environment, device) for kind in Float32Kind},
        has_tf32=device.matrix_peak("tfloat32") is not None,
    )


def _rule(kind: Float32Kind, environment: Mapping[str, str], device: DeviceSpec) -> Float32Rule:
    if device.vendor == "Google":
        return _if_known(Float32Rule(precision="bfloat16", reason="XLA's default"), device)
    if device.vendor == "AMD" and kind in (Float32Kind.CONV, Float32Kind.RNN):
        return Float32Rule(precision="float32", reason="MIOpen's precision")
    if kind is Float32Kind.ATTENTION:
        products = _rule(Float32Kind.MATMUL, environment, device)
        emulated = Float32Rule(precision=THREE_TF32, reason="memory-efficient attention's precision")
        wanted = products.precision == "float32" and device.vendor == "NVIDIA"
        return emulated if wanted and device.matrix_peak("tfloat32") else products
    if device.kind != "cpu":
        return _of_setting(_CUDA[kind], environment, device)
    found = _of_setting(_ONEDNN[kind], environment, device)
    if kind is Float32Kind.RNN and found.precision == "float32":  # oneDNN has no GRU: torch computes it by products
        return _of_setting(_ONEDNN[Float32Kind.MATMUL], environment, device)
    return found


def _of_setting(library: str, environment: Mapping[str, str], device: DeviceSpec) -> Float32Rule:
    setting = setting_of(environment, library)
    reason = f"{fact_name(library)} is {setting}"
    return _if_known(Float32Rule(precision=PRECISIONS.get(setting, "float32"), reason=reason), device)


def _if_known(rule: Float32Rule, device: DeviceSpec) -> Float32Rule:
    if rule.precision == "float32" or device.matrix_peak(rule.precision):
        return rule
    return Float32Rule(precision="float32", reason=f"{device.name} lists no {rule.precision} peak")


def as_it_ran(device: DeviceSpec, precision: str) -> DeviceSpec:
    """The device with the peak at which float32 products ran, for who knows no settings: a predictor, say."""
    peak = device.matrix_peak(precision)
    if precision == "float32" or peak is None:
        return device

    def faster(roofs: Roofs | None) -> Roofs | None:
        return roofs and replace(roofs, matrix_flops_per_s={**roofs.matrix_flops_per_s, "float32": peak})

    return replace(device, datasheet=faster(device.datasheet), calibrated=faster(device.calibrated))
