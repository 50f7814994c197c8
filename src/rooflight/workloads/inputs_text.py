"""Inputs of models that take text. They have no padding mask: every token counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rooflight.workloads.wanted import Inputs, Wanted, class_labels, vocabulary

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
    text = config.get_text_config()
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
