"""Inputs of models that take sound: waveforms, spectrograms, and transcripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rooflight.workloads.errors import TargetError
from rooflight.workloads.wanted import Inputs, Wanted, class_labels, vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SECONDS: Final = 10  # of a waveform by default
_USUAL_RATE: Final = 16_000  # Hz: what speech models are trained on


def hears_frames(config: PreTrainedConfig) -> bool:
    """Whether the model's sequence is the output of convolutions over a waveform (wav2vec 2.0, HuBERT, ...)."""
    return _convolutions(config) != []


def default_frames(config: PreTrainedConfig) -> int:
    """Frames of ten seconds of sound."""
    length = SECONDS * _rate(config)
    for kernel, stride in _convolutions(config):
        length = (length - kernel) // stride + 1
    return max(length, 1)


def transcript_limit(config: PreTrainedConfig) -> int | None:
    """The longest text that the decoder of a speech model has positions for."""
    text = getattr(config, "decoder", None) or config
    for name in ("max_target_positions", "max_position_embeddings"):
        limit = getattr(text, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def sound_inputs(wanted: Wanted) -> Inputs:
    """Sound, and the labels of the kind of model."""
    arguments, sizes = _sound(wanted)
    kind, batch, seq = wanted.chosen.kind, wanted.batch, wanted.seq
    tokens = None
    if kind == "speech-to-text":
        target = "labels" if wanted.labels else "decoder_input_ids"
        arguments[target] = wanted.draw.ids(batch, seq, below=vocabulary(wanted.config))
        tokens, sizes = batch * seq, f"{sizes}, {seq} tokens"
    elif wanted.labels:
        match kind:
            case "audio-classification":
                arguments["labels"] = class_labels(wanted)
            case "audio-frame-classification":
                arguments["labels"] = wanted.draw.ids(batch, seq, wanted.num_labels, below=2)
            case "ctc":  # about three frames per letter; never the blank, number 0
                letters = max(seq // 3, 1)
                arguments["labels"] = wanted.draw.ids(batch, letters, below=vocabulary(wanted.config) - 1) + 1
                sizes = f"{sizes}, {letters} letters"
            case _:
                raise TargetError(f"no labels are known for {wanted.chosen.name}: use --mode forward")
    return Inputs(arguments=arguments, tokens=tokens, sizes=sizes)


def _sound(wanted: Wanted) -> tuple[dict[str, Any], str]:
    config, batch, draw = wanted.config, wanted.batch, wanted.draw
    name = wanted.chosen.main_input
    bins, rate = getattr(config, "num_mel_bins", None), _rate(config)
    if name == "input_features":
        positions = getattr(config, "max_source_positions", None)
        if bins is not None and positions is not None:  # Whisper: the second convolution halves the frames
            return {name: draw.normal(batch, bins, 2 * positions)}, f"batch {batch}, {2 * positions} mel frames"
        width = getattr(config, "input_feat_per_channel", None) or getattr(config, "feature_projection_input_dim", None)
        if width is not None:  # a frame every 10 ms
            return {name: draw.normal(batch, SECONDS * 100, width)}, f"batch {batch}, {SECONDS * 100} mel frames"
    elif bins is not None and (length := getattr(config, "max_length", None)):  # a spectrogram by another name
        return {name: draw.normal(batch, length, bins)}, f"batch {batch}, {length} mel frames"
    elif name == "input_values":
        samples = _samples(config, wanted.seq) if hears_frames(config) else SECONDS * rate
        if wanted.chosen.kind == "audio-codec":
            channels = getattr(config, "audio_channels", 1)
            return {name: draw.normal(batch, channels, samples)}, f"batch {batch}, {samples / rate:g} s at {rate} Hz"
        said = f"batch {batch}, {samples / rate:.3g} s at {rate} Hz"
        frames = f" ({wanted.seq} frames)" if hears_frames(config) else ""
        return {name: draw.normal(batch, samples)}, said + frames
    raise TargetError(
        f"no inputs are known for {wanted.chosen.name}: write your own step and pass path/to/train.py:make_step"
    )


def _convolutions(config: PreTrainedConfig) -> list[tuple[int, int]]:
    kernels, strides = getattr(config, "conv_kernel", None), getattr(config, "conv_stride", None)
    if not isinstance(kernels, (list, tuple)) or not isinstance(strides, (list, tuple)):
        return []
    return list(zip(kernels, strides, strict=True))


def _samples(config: PreTrainedConfig, frames: int) -> int:
    """The length of the shortest waveform of which the convolutions make ``frames`` frames."""
    length = frames
    for kernel, stride in reversed(_convolutions(config)):
        length = (length - 1) * stride + kernel
    return length


def _rate(config: PreTrainedConfig) -> int:
    rate = getattr(config, "sampling_rate", None)
    return rate if isinstance(rate, int) and rate > 0 else _USUAL_RATE
