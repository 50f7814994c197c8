"""The kinds of model that a step can be made for, with their modes. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["forward", "train", "prefill", "decode"]
MODES: Final[tuple[Mode, ...]] = ("forward", "train", "prefill", "decode")

ModelKind = Literal[
    "audio-classification",
    "audio-codec",
    "audio-frame-classification",
    "base",
    "causal-lm",
    "ctc",
    "depth-estimation",
    "image-classification",
    "image-text-contrastive",
    "image-text-to-text",
    "masked-lm",
    "multiple-choice",
    "next-sentence-prediction",
    "object-detection",
    "pretraining",
    "question-answering",
    "semantic-segmentation",
    "seq2seq-lm",
    "sequence-classification",
    "speech-to-text",
    "token-classification",
    "universal-segmentation",
    "video-classification",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of model. ``mappings`` are transformers' lists of its classes, ``suffixes`` how their names end."""

    mappings: tuple[str, ...]  # names of transformers' auto classes
    suffixes: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = ("forward", "train")
    reads_values: tuple[Mode, ...] = ()  # modes in which sizes depend on the values of tensors; on meta they differ


# A config without architectures may be in several of transformers' lists (BART is in four): the first wins.
KINDS: Final[dict[ModelKind, Kind]] = {
    "speech-to-text": Kind(mappings=("AutoModelForSpeechSeq2Seq",)),
    "seq2seq-lm": Kind(mappings=("AutoModelForSeq2SeqLM",)),
    "image-text-contrastive": Kind(mappings=("AutoModelForZeroShotImageClassification",)),
    "image-text-to-text": Kind(mappings=("AutoModelForImageTextToText",)),
    "image-classification": Kind(mappings=("AutoModelForImageClassification",), suffixes=("ForImageClassification",)),
    "masked-lm": Kind(mappings=("AutoModelForMaskedLM",), suffixes=("ForMaskedLM",)),
    "causal-lm": Kind(mappings=("AutoModelForCausalLM",), suffixes=("ForCausalLM", "LMHeadModel"), modes=MODES),
    "ctc": Kind(mappings=("AutoModelForCTC",), suffixes=("ForCTC",), reads_values=("train",)),
    "object-detection": Kind(
        mappings=("AutoModelForObjectDetection",), suffixes=("ForObjectDetection",), reads_values=("train",)
    ),
    "semantic-segmentation": Kind(
        mappings=("AutoModelForSemanticSegmentation",), suffixes=("ForSemanticSegmentation",)
    ),
    "universal-segmentation": Kind(
        mappings=("AutoModelForUniversalSegmentation", "AutoModelForInstanceSegmentation"),
        suffixes=("ForUniversalSegmentation", "ForInstanceSegmentation"),
        reads_values=("train",),
    ),
    "depth-estimation": Kind(mappings=("AutoModelForDepthEstimation",), suffixes=("ForDepthEstimation",)),
    "audio-classification": Kind(mappings=("AutoModelForAudioClassification",), suffixes=("ForAudioClassification",)),
    "video-classification": Kind(mappings=("AutoModelForVideoClassification",), suffixes=("ForVideoClassification",)),
    "sequence-classification": Kind(
        mappings=("AutoModelForSequenceClassification",), suffixes=("ForSequenceClassification",)
    ),
    "token-classification": Kind(mappings=("AutoModelForTokenClassification",), suffixes=("ForTokenClassification",)),
    "question-answering": Kind(mappings=("AutoModelForQuestionAnswering",), suffixes=("ForQuestionAnswering",)),
    "multiple-choice": Kind(mappings=("AutoModelForMultipleChoice",), suffixes=("ForMultipleChoice",)),
    "next-sentence-prediction": Kind(
        mappings=("AutoModelForNextSentencePrediction",), suffixes=("ForNextSentencePrediction",)
    ),
    "audio-frame-classification": Kind(
        mappings=("AutoModelForAudioFrameClassification",), suffixes=("ForAudioFrameClassification",)
    ),
    "audio-codec": Kind(
        mappings=("AutoModelForAudioTokenization",),
        suffixes=("EncodecModel", "MimiModel"),
        modes=("forward",),
        reads_values=("forward",),
    ),
    "pretraining": Kind(mappings=("AutoModelForPreTraining",), suffixes=("ForPreTraining",)),
    "base": Kind(mappings=("AutoModel",), suffixes=("Model", "WithProjection"), modes=("forward",)),
}
