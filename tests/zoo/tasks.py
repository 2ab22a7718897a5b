"""Tiny random models as `save_pretrained` writes them, one for each task."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as t
from torch import nn

from .specimen import Specimen

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat on mat is red blue where who runs good bad film . , ##s ##ing"
TEXT: dict[str, Any] = {
    "vocab_size": len(WORDS.split()),
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
VIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
WAVE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16] * 3,
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 4, 4],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
NAMED = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
LETTERS = ("<pad>", "<s>", "</s>", "<unk>", "|", "A", "B", "C")
SIDE = {"height": 32, "width": 32}
POOLING = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


def write(folder: Path, name: str) -> Path:
    """Write the model of that name and its processor."""
    torch.manual_seed(0)
    network, processor = MODELS[name]()
    t.utils.logging.disable_progress_bar()
    network.save_pretrained(folder)
    if processor is None or name == "clip":
        (folder / "vocab.txt").write_text("\n".join(WORDS.split()))
        t.BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    if name == "minilm":
        make_sentences(folder)
    if name == "wav2vec2":
        (folder / "vocab.json").write_text(json.dumps({letter: k for k, letter in enumerate(LETTERS)}))
    return folder


def make_sentences(folder: Path) -> None:
    """Turn a model's folder into one of sentence-transformers."""
    kinds = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    listed = [
        {"idx": k, "path": path, "type": f"sentence_transformers.models.{kind}"} for k, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for _, path in kinds[1:]:
        (folder / path).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')


MODELS: dict[str, Any] = {
    "minilm": lambda: (t.BertModel(t.BertConfig(**TEXT)), None),
    "bert": lambda: (t.BertModel(t.BertConfig(**TEXT)), None),
    "roberta": lambda: (
        t.RobertaForSequenceClassification(
            t.RobertaConfig(**TEXT, **NAMED, type_vocab_size=1, pad_token_id=0, initializer_range=0.5)
        ),
        None,
    ),
    "regression": lambda: (
        t.BertForSequenceClassification(
            t.BertConfig(**TEXT, num_labels=1, problem_type="regression", initializer_range=0.5)
        ),
        None,
    ),
    "tokens": lambda: (t.BertForTokenClassification(t.BertConfig(**TEXT, **NAMED)), None),
    "questions": lambda: (t.BertForQuestionAnswering(t.BertConfig(**TEXT)), None),
    "masks": lambda: (t.BertForMaskedLM(t.BertConfig(**TEXT)), None),
    "vit": lambda: (t.ViTForImageClassification(t.ViTConfig(**VIT, **NAMED)), t.ViTImageProcessor(size=SIDE)),
    "deit": lambda: (
        t.DeiTForImageClassificationWithTeacher(t.DeiTConfig(**VIT, **NAMED)),
        t.DeiTImageProcessor(size={"height": 40, "width": 40}, crop_size=SIDE),
    ),
    "convnext": lambda: (
        t.ConvNextForImageClassification(
            t.ConvNextConfig(hidden_sizes=[8, 16, 16, 32], depths=[1] * 4, image_size=64, **NAMED)
        ),
        t.ConvNextImageProcessor(size={"shortest_edge": 64}),
    ),
    "segformer": lambda: (
        t.SegformerForSemanticSegmentation(
            t.SegformerConfig(
                hidden_sizes=[8, 16, 16, 32],
                depths=[1] * 4,
                decoder_hidden_size=16,
                num_attention_heads=[1, 2, 2, 4],
                initializer_range=0.5,
                **NAMED,
            )
        ),
        t.SegformerImageProcessor(size={"height": 64, "width": 64}),
    ),
    "depth": lambda: (
        t.DepthAnythingForDepthEstimation(
            t.DepthAnythingConfig(
                backbone_config=t.Dinov2Config(
                    image_size=56,
                    patch_size=14,
                    hidden_size=32,
                    num_hidden_layers=4,
                    num_attention_heads=4,
                    out_indices=[1, 2, 3, 4],
                    reshape_hidden_states=False,
                    apply_layernorm=True,
                ),
                patch_size=14,
                reassemble_hidden_size=32,
                neck_hidden_sizes=[8, 8, 16, 16],
                fusion_hidden_size=16,
                head_hidden_size=8,
                initializer_range=0.1,
            )
        ),
        t.DPTImageProcessor(size={"height": 56, "width": 56}),
    ),
    "wav2vec2": lambda: (
        t.Wav2Vec2ForCTC(t.Wav2Vec2Config(**WAVE, vocab_size=len(LETTERS), pad_token_id=0)),
        t.Wav2Vec2FeatureExtractor(),
    ),
    "hubert": lambda: (
        t.HubertForSequenceClassification(t.HubertConfig(**WAVE, **NAMED)),
        t.Wav2Vec2FeatureExtractor(),
    ),
    "ast": lambda: (
        t.ASTForAudioClassification(
            t.ASTConfig(
                **{k: v for k, v in VIT.items() if k not in ("image_size", "patch_size")},
                max_length=64,
                num_mel_bins=32,
                **NAMED,
            )
        ),
        t.ASTFeatureExtractor(max_length=64, num_mel_bins=32),
    ),
    "clip": lambda: (
        t.CLIPModel(
            t.CLIPConfig(
                text_config=TEXT | {"max_position_embeddings": 16, "eos_token_id": 3},
                vision_config=VIT,
                projection_dim=16,
            )
        ),
        t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=SIDE),
    ),
    "llama": lambda: (t.LlamaForCausalLM(t.LlamaConfig(**TEXT)), None),
}


def _build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()[0].eval()


def _inputs(name: str) -> tuple[torch.Tensor, ...]:
    ids = torch.arange(5, 13)[None]
    if name in SIDES:
        pixels = torch.randn(1, 3, SIDES[name], SIDES[name])
        return (ids, pixels) if name == "clip" else (pixels,)
    sounds = {"wav2vec2": (1, 1600), "hubert": (1, 1600), "ast": (1, 64, 32)}
    return (torch.randn(sounds[name]),) if name in sounds else (ids,)


SIDES = {"vit": 32, "deit": 32, "convnext": 64, "segformer": 64, "depth": 56, "clip": 32}  # pixels
SPECIMENS = {
    name: Specimen(partial(_build, name), partial(_inputs, name), partial(write, name=name)) for name in MODELS
}
