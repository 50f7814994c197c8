"""Configs that name a class: that class runs, with inputs that fit it, and its FLOPs are what they must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_architectures import ARCHITECTURES, config_of

import rooflight as rl
from rooflight.front.options import RunOptions
from rooflight.front.targets import analyze_target
from rooflight.records.signature import WRITTEN_OUTSIDE
from rooflight.roofline.tables.report import report_of
from rooflight.workloads.classes import KINDS, class_of
from rooflight.workloads.errors import TargetError
from rooflight.workloads.targets import open_target, read_config

BATCH = 2
MATCHED = {"DetrForObjectDetection", "YolosForObjectDetection"}
NO_LOSS = {"LlamaModel", "BertModel", "EncodecModel", "DPTForDepthEstimation"}


@pytest.fixture
def config_file(config_file):
    return lambda name, **changed: config_file(config_of(name, **changed))


def analysis_of(path, mode="forward", **options):
    return analyze_target(path, RunOptions(mode=mode, batch=BATCH, **options), device="H100-SXM5-80GB")


def flops_of(step):
    with rl.record(step.model) as recording:
        step.run()
    return rl.analyze(recording.session, "H100-SXM5-80GB").totals.matrix_flops


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_config_runs_as_the_class_that_it_names(config_file, name):
    path = config_file(name)
    analysis, notes = analysis_of(path)
    report = report_of(analysis, notes=notes)
    assert report.data.model_class == name
    assert ("model", name) in report.facts
    assert analysis.coverage.uncosted == ()
    if name in NO_LOSS:
        with pytest.raises(TargetError, match=r"computes no loss|no labels are known"):
            open_target(path, mode="train")
        return
    trained, _ = analysis_of(path, "train")
    # the boxes of a detector are matched with the labels by SciPy
    outside = {(missing.name, missing.reason) for missing in trained.coverage.uncosted}
    assert outside == ({(WRITTEN_OUTSIDE, "written outside the dispatcher")} if name in MATCHED else set())
    assert {group.name for group in trained.by("phase")} == {"forward", "backward", "optimizer"}
    # a backward pass is one product for the weights and one for the inputs; DETR leaves its backbone's stem untrained
    assert 1.4 - (name == "DetrForObjectDetection") < trained.totals.matrix_flops / analysis.totals.matrix_flops < 4


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in ("MambaForCausalLM", "EncodecModel")])
def test_values_change_no_flops(config_file, name):
    path = config_file(name)
    meta, real = (open_target(path, mode="forward", batch=BATCH, dtype="fp32", device=at) for at in ("meta", "cpu"))
    if not meta.reads_values:
        assert flops_of(meta) == flops_of(real)


# By hand: the Llama of the tests is 32 wide, knows 64 tokens and three labels; a sequence is 256 long by default.


def test_a_classifier_of_sequences_differs_from_the_language_model_by_its_head(config_file):
    model, _ = analysis_of(config_file("LlamaForCausalLM"))
    classifier, _ = analysis_of(config_file("LlamaForSequenceClassification"))
    bare, _ = analysis_of(config_file("LlamaModel"))
    tokens = BATCH * 256
    assert model.totals.matrix_flops - bare.totals.matrix_flops == 2 * tokens * 32 * 64  # a logit per token of the list
    assert classifier.totals.matrix_flops - bare.totals.matrix_flops == 2 * tokens * 32 * 3  # three labels


def test_decoders_of_images_attend_to_them(config_file):
    analysis, _ = analysis_of(config_file("LlavaForConditionalGeneration"))
    # images of 32 x 32 in patches of 8: 16 features, before 256 tokens of text
    assert "sequence 272 of which 16 are the image's" in analysis.target
    with pytest.raises(
        TargetError, match="seq 16 is too short for LlavaForConditionalGeneration: an image alone is 16"
    ):
        open_target(config_file("LlavaForConditionalGeneration"), mode="forward", seq=16)


def test_the_length_of_a_waveform_follows_from_its_frames(config_file):
    # the convolutions of wav2vec 2.0 see 400 samples and step by 320
    step = open_target(config_file("Wav2Vec2ForCTC"), mode="forward", seq=50)
    assert f"batch 1, {(49 * 320 + 400) / 16000:.3g} s at 16000 Hz (50 frames)" in step.description
    assert step.run().logits.shape == (1, 50, 32)


def test_the_first_of_several_architectures_counts(config_file):
    config = config_file("BertModel", architectures=["BertForTokenClassification", "BertForMaskedLM"])
    analysis, notes = analysis_of(config)
    assert report_of(analysis).data.model_class == "BertForTokenClassification"
    assert notes == []


@pytest.mark.parametrize(
    ("architectures", "said"),
    [
        (["MysteryForCausalLM"], "transformers has no class MysteryForCausalLM, which the config names"),
        (["LlamaForCausalLM"], "no class for model_type bert: built BertForMaskedLM"),
        (["BertConfig"], "transformers has no class BertConfig"),
        ([], "The config names no architecture: built BertForMaskedLM"),
        (None, "The config names no architecture: built BertForMaskedLM"),
    ],
)
def test_a_class_that_is_none_is_replaced_and_the_report_says_so(config_file, architectures, said):
    analysis, notes = analysis_of(config_file("BertModel", architectures=architectures))
    assert report_of(analysis).data.model_class == "BertForMaskedLM"
    assert [said in note for note in notes] == [True]


def test_every_kind_has_a_list_of_transformers():
    import transformers

    for kind in KINDS.values():
        assert all(hasattr(transformers, name) for name in kind.mappings)


@pytest.mark.parametrize(
    ("model_type", "name", "message"),
    [
        ("timm_wrapper", "TimmWrapperForImageClassification", r"requires the timm library .*`pip install timm`"),
        ("higgs_audio_v2_tokenizer", "HiggsAudioV2TokenizerModel", "^{} needs torchaudio: pip install torchaudio$"),
        ("patchtst", "PatchTSTForPrediction", "^no inputs are known for {}: write your own step and pass"),
    ],
)
def test_a_class_that_lacks_a_library_or_inputs_is_refused(tmp_path, model_type, name, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": model_type, "architectures": [name]}))
    with pytest.raises(TargetError, match=message.format(name)):
        open_target(str(path), mode="forward")


@pytest.mark.parametrize(
    ("name", "module", "runs"),
    [
        ("CLIPModel", "text_model", True),
        ("CLIPModel", "vision_model", True),
        ("SegformerForSemanticSegmentation", "decode_head", True),
        ("SegformerForImageClassification", "decode_head", False),
    ],
)
def test_clip_runs_both_towers_and_segmentation_its_decoder(config_file, name, module, runs):
    analysis, _ = analysis_of(config_file(name))
    assert any(module in group.name for group in analysis.by("module")) == runs


def test_what_changes_at_random_is_left_out_of_training_and_a_named_class_is_found_without_building(config_file):
    path = config_file("Wav2Vec2ForSequenceClassification")
    (note,) = open_target(path, mode="train").notes
    assert note.endswith("at random: layerdrop, apply_spec_augment.")
    assert open_target(path, mode="forward").notes == ()
    chosen = class_of(read_config(Path(path)))
    assert (chosen.name, chosen.kind) == ("Wav2Vec2ForSequenceClassification", "audio-classification")
