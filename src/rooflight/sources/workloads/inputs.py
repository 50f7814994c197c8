"""Inputs of each class of model: their kind, the length of a sequence, and the arguments of one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from rooflight.sources.workloads import images
from rooflight.sources.workloads.classes import ChosenClass
from rooflight.sources.workloads.errors import TargetError, first_words, no_inputs_for
from rooflight.sources.workloads.tensors import Inputs, Wanted, class_labels, vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


CHOICES: Final = 4  # of a multiple choice question, as in SWAG and RACE

_FIRST_POSITION_AFTER_PADDING: Final = frozenset(
    {
        *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "mpnet"),
        *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    }
)
"""Model types whose position numbers begin after ``pad_token_id``, so that their tables have that many unused rows."""


def positions(config: PreTrainedConfig) -> int | None:
    """The longest sequence a model has positions for; None where nothing limits it."""
    try:
        text = config.get_text_config()
    except ValueError as error:  # several parts read text
        raise no_inputs_for(f'model_type "{config.model_type}"', f" ({first_words(str(error))})") from error
    limit = getattr(text, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None
    if config.model_type in _FIRST_POSITION_AFTER_PADDING and isinstance(config.pad_token_id, int):
        limit -= config.pad_token_id + 1
    return limit


def text_inputs(wanted: Wanted) -> Inputs:
    """Token ids, and the labels of the kind of model."""
    batch, seq, vocab = wanted.batch, wanted.seq, vocabulary(wanted.config)
    sizes, tokens = f"batch {batch}, sequence {seq}", batch * seq
    arguments: dict[str, Any] = {"input_ids": wanted.draw.ids(batch, seq, below=vocab)}
    if wanted.chosen.kind == "multiple-choice":
        sizes, tokens = f"batch {batch}, {CHOICES} choices, sequence {seq}", CHOICES * tokens
        arguments = {"input_ids": wanted.draw.ids(batch, CHOICES, seq, below=vocab)}
    if wanted.config.is_encoder_decoder and wanted.chosen.kind == "sequence-classification" and not wanted.draw.on_meta:
        arguments["input_ids"] = _ended(wanted, vocab)
    if wanted.labels:
        arguments |= _labels(wanted, vocab)
    elif wanted.chosen.kind in ("base", "seq2seq-lm") and wanted.accepts(
        "decoder_input_ids"
    ):  # others shift their input
        arguments["decoder_input_ids"] = wanted.draw.ids(batch, seq, below=vocab)
    if wanted.chosen.kind == "seq2seq-lm":
        tokens, sizes = 2 * tokens, f"{sizes} on both sides"
    return Inputs(arguments=arguments, tokens=tokens, sizes=sizes)


def _ended(wanted: Wanted, vocab: int) -> Any:
    """Sequences that end with the end token and have it nowhere else: BART classifies at that place."""
    end = wanted.config.eos_token_id
    ids = wanted.draw.ids(wanted.batch, wanted.seq, below=vocab)
    if isinstance(end, int):
        ids[ids == end] = (end + 1) % vocab
        ids[:, -1] = end
    return ids


def _labels(wanted: Wanted, vocab: int) -> dict[str, Any]:
    batch, seq, draw = wanted.batch, wanted.seq, wanted.draw
    match wanted.chosen.kind:
        case "sequence-classification":
            return {"labels": class_labels(wanted)}
        case "question-answering":
            return {name: draw.ids(batch, below=seq) for name in ("start_positions", "end_positions")}
        case "multiple-choice" | "next-sentence-prediction" as kind:
            return {"labels": draw.ids(batch, below=CHOICES if kind == "multiple-choice" else 2)}
        case "pretraining":
            second = {n: draw.ids(batch, below=2) for n in ("next_sentence_label", "sentence_order_label")}
            found = {name: value for name, value in second.items() if wanted.accepts(name)}
            return {"labels": draw.ids(batch, seq, below=vocab if found else 2), **found}  # ELECTRA's are 0 or 1
    # from a translation the model derives the decoder's input
    below = wanted.num_labels if wanted.chosen.kind == "token-classification" else vocab
    return {"labels": draw.ids(batch, seq, below=below)}


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
                raise TargetError(f"no labels are known for {wanted.chosen.name}: use --step forward")
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
        sizes = f"batch {batch}, {samples / rate:.3g} s at {rate} Hz"
        frames = f" ({wanted.seq} frames)" if hears_frames(config) else ""
        return {name: draw.normal(batch, samples)}, sizes + frames
    raise no_inputs_for(wanted.chosen.name)


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


Food = Literal["text", "image", "sound", "image and text", "conversation", "caption"]

_SOUNDS: Final = ("input_values", "input_features")
_BY_ARGUMENT: Final[dict[str, Food]] = {"input_ids": "text", "pixel_values": "image", **dict.fromkeys(_SOUNDS, "sound")}


def food_of(chosen: ChosenClass) -> Food:
    """The kind of input of a class. Raises TargetError for a class whose inputs are not known."""
    if chosen.kind == "image-text-contrastive":
        return "image and text"
    if chosen.kind == "image-text-to-text":
        if {"input_ids", "pixel_values"} <= chosen.accepted:
            return "conversation"
        if {"decoder_input_ids", "pixel_values"} <= chosen.accepted:
            return "caption"
    found = _BY_ARGUMENT.get(chosen.main_input)
    if found is None or chosen.main_input not in chosen.accepted:
        raise no_inputs_for(chosen.name)
    return found


def make_inputs(wanted: Wanted) -> Inputs:
    """Arguments for one forward call. Raises TargetError for a class whose inputs cannot be made."""
    return _MAKERS[food_of(wanted.chosen)](wanted)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceRule:
    """The meaning of ``seq`` for a model: a length up to ``limit``, or none (``takes`` then names its input)."""

    takes: str = ""
    limit: int | None = None
    default: int | None = None  # where it is not the usual one


def sequence_rule(chosen: ChosenClass, config: PreTrainedConfig) -> SequenceRule:
    """How long the sequences of a class may be."""
    match food_of(chosen):
        case "text" | "image and text" | "conversation" | "caption":
            return SequenceRule(limit=positions(config))
        case "image":
            return SequenceRule(takes="video" if chosen.kind == "video-classification" else "images")
    if chosen.kind == "speech-to-text":
        return SequenceRule(limit=transcript_limit(config))
    if chosen.main_input == "input_values" and hears_frames(config):
        return SequenceRule(default=default_frames(config))
    return SequenceRule(takes="sound of a fixed length")


_MAKERS: Final[dict[Food, Callable[[Wanted], Inputs]]] = {
    "text": text_inputs,
    "image": images.image_inputs,
    "sound": sound_inputs,
    "image and text": images.contrastive_inputs,
    "conversation": images.conversation_inputs,
    "caption": images.caption_inputs,
}
