"""Inputs of models that take images, alone or with a text."""

from __future__ import annotations

import math
from typing import Any, Final

from rooflight.sources.workloads.errors import TargetError, first_words, no_inputs_for
from rooflight.sources.workloads.tensors import Inputs, Wanted, class_labels, config_value, vocabulary

_SIZES: Final = {"object-detection": 800, "semantic-segmentation": 512, "universal-segmentation": 512}
_USUAL_SIZE: Final = 224
"""Height and width where a config has none: as in the papers of DETR (shortest side), SegFormer and ResNet."""

OBJECTS: Final = 8
"""Labelled objects per image, about COCO's mean (7.3)."""


def image_size(wanted: Wanted) -> tuple[int, int]:
    """Height and width of the images that a model is made for."""
    size: Any = config_value(wanted.config, "image_size", "input_size") or _SIZES.get(wanted.chosen.kind, _USUAL_SIZE)
    if isinstance(size, dict):
        size = [size.get("height", _USUAL_SIZE), size.get("width", _USUAL_SIZE)]
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise TargetError(f"image_size {size} of the config is no height and width")
    return pair


def images(wanted: Wanted, *more: int) -> Any:
    """Pixels of a batch of images; ``more`` dimensions come after the batch."""
    channels = config_value(wanted.config, "num_channels") or 3
    return wanted.draw.normal(wanted.batch, *more, channels, *image_size(wanted))


def image_inputs(wanted: Wanted) -> Inputs:
    """Images, or the frames of a video, and the labels of the kind of model."""
    height, width = image_size(wanted)
    batch, draw, kind = wanted.batch, wanted.draw, wanted.chosen.kind
    sizes = f"batch {batch}, images {height} x {width}"
    arguments: dict[str, Any] = {"pixel_values": images(wanted)}
    if kind == "video-classification":
        frames = config_value(wanted.config, "num_frames") or 16
        arguments, sizes = (
            {"pixel_values": images(wanted, frames)},
            f"batch {batch}, {frames} frames {height} x {width}",
        )
    if wanted.labels:
        match kind:
            case "semantic-segmentation":
                arguments["labels"] = draw.ids(batch, height, width, below=wanted.num_labels)
            case "object-detection":
                # boxes: centre, width and height as shares of the image
                arguments["labels"] = [
                    {
                        "class_labels": draw.ids(OBJECTS, below=wanted.num_labels),
                        "boxes": draw.uniform(OBJECTS, 4) * 0.4 + 0.3,
                    }
                    for _ in range(batch)
                ]
            case "universal-segmentation":
                arguments["mask_labels"] = [draw.uniform(OBJECTS, height, width).round() for _ in range(batch)]
                arguments["class_labels"] = [draw.ids(OBJECTS, below=wanted.num_labels) for _ in range(batch)]
            case "image-classification" | "video-classification":
                arguments["labels"] = class_labels(wanted)
            case "pretraining":  # a masked autoencoder masks patches itself
                pass
            case _:
                raise TargetError(f"no labels are known for {wanted.chosen.name}: use --step forward")
    return Inputs(arguments=arguments, tokens=None, sizes=sizes)


def contrastive_inputs(wanted: Wanted) -> Inputs:
    """As many texts as images; the loss compares each with each."""
    batch, seq = wanted.batch, wanted.seq
    arguments: dict[str, Any] = {
        "input_ids": wanted.draw.ids(batch, seq, below=vocabulary(wanted.config)),
        "pixel_values": images(wanted),
    }
    if wanted.labels:
        arguments["return_loss"] = True
    height, width = image_size(wanted)
    sizes = f"batch {batch}, images {height} x {width}, texts of {seq} tokens"
    return Inputs(arguments=arguments, tokens=None, sizes=sizes)


def caption_inputs(wanted: Wanted) -> Inputs:
    """An image for the encoder, text for the decoder."""
    batch, seq = wanted.batch, wanted.seq
    target = "labels" if wanted.labels else "decoder_input_ids"
    arguments = {"pixel_values": images(wanted), target: wanted.draw.ids(batch, seq, below=vocabulary(wanted.config))}
    height, width = image_size(wanted)
    return Inputs(
        arguments=arguments, tokens=batch * seq, sizes=f"batch {batch}, images {height} x {width}, {seq} tokens"
    )


def conversation_inputs(wanted: Wanted) -> Inputs:
    """A text that begins with the tokens of an image: as many as the features that the model's own encoder returns.

    Token ids are on the CPU where the model is on meta: transformers looks for the places of the image in them.
    """
    batch, seq = wanted.batch, wanted.seq
    pictures, features, described = _pictures(wanted)
    if seq <= features:
        raise TargetError(f"seq {seq} is too short for {wanted.chosen.name}: an image alone is {features} tokens")
    arguments: dict[str, Any] = {"input_ids": _ids_with_image(wanted, features), **pictures}
    for name in ("token_type_ids", "mm_token_type_ids"):
        if wanted.accepts(name):
            kinds = wanted.draw.torch.zeros_like(arguments["input_ids"])
            kinds[:, :features] = 1
            arguments[name] = kinds
    if wanted.labels:
        arguments["labels"] = wanted.draw.ids(batch, seq, below=vocabulary(wanted.config))
    sizes = f"batch {batch}, {described}, sequence {seq} of which {features} are the image's"
    return Inputs(arguments=arguments, tokens=batch * seq, sizes=sizes)


def image_tokens(wanted: Wanted) -> int:
    """How many tokens of the sequence are an image's."""
    return _pictures(wanted)[1]


def _ids_with_image(wanted: Wanted, features: int) -> Any:
    torch, config = wanted.draw.torch, wanted.config
    marker = next(
        (v for n in ("image_token_id", "image_token_index") if isinstance(v := getattr(config, n, None), int)), None
    )
    if marker is None:
        raise TargetError(f"no inputs are known for {wanted.chosen.name}: its config has no image_token_id")
    device = "cpu" if wanted.draw.on_meta else wanted.draw.device
    special = [
        v for n in dir(config) if n.endswith(("token_id", "token_index")) and isinstance(v := getattr(config, n), int)
    ]
    plain = next(number for number in range(len(special) + 1) if number not in special)
    ids = torch.full((wanted.batch, wanted.seq), plain, dtype=torch.int64, device=device)
    ids[:, :features] = marker
    return ids


def _pictures(wanted: Wanted) -> tuple[dict[str, Any], int, str]:
    if wanted.accepts("image_grid_thw"):
        return _patches(wanted)
    more = (1,) if wanted.accepts("pixel_attention_mask") else ()  # Idefics: a list of images for each text
    model, meta = wanted.on_meta(), wanted.draw.torch.device("meta")
    height, width = image_size(wanted)
    channels = config_value(wanted.config, "num_channels") or 3
    encode = getattr(model, "get_image_features", None)
    if encode is None:
        raise no_inputs_for(wanted.chosen.name)
    one = wanted.draw.torch.empty((1, *more, channels, height, width), dtype=model.dtype, device=meta)
    try:
        with wanted.draw.torch.no_grad():
            found = encode(pixel_values=one)
    except Exception as error:
        raise no_inputs_for(wanted.chosen.name, f" (its images: {first_words(str(error))})") from error
    found = getattr(found, "pooler_output", found)
    features = sum(math.prod(each.shape[:-1]) for each in (found if isinstance(found, (list, tuple)) else [found]))
    return {"pixel_values": images(wanted, *more)}, features, f"an image {height} x {width}"


def _patches(wanted: Wanted) -> tuple[dict[str, Any], int, str]:
    """Qwen's images: a row for each patch, and the grid that they form, which is read on the host."""
    torch, vision = wanted.draw.torch, wanted.config.vision_config
    try:
        patch, merge, frames = vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
    except AttributeError as error:
        raise no_inputs_for(wanted.chosen.name, f" (its images: {first_words(str(error))})") from error
    side = max(_QWEN_SIZE // (patch * merge), 1) * merge
    row = (getattr(vision, "in_channels", None) or getattr(vision, "in_chans", None) or 3) * (frames * patch * patch)
    device = "cpu" if wanted.draw.on_meta else wanted.draw.device
    grid = torch.tensor([[1, side, side]] * wanted.batch, dtype=torch.int64, device=device)
    pixels = wanted.draw.normal(wanted.batch * side * side, row)
    features = side * side // merge**2
    return {"pixel_values": pixels, "image_grid_thw": grid}, features, f"an image {side * patch} x {side * patch}"


_QWEN_SIZE: Final = 448  # Qwen takes images of any size; its papers' examples are about this large
