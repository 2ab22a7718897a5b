"""Architectures of `transformers`, each as a tiny model with random weights and the inputs of its calls."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from ptegpu.export import quiet
from ptegpu.export.hf_models import KINDS, Bounds, task_of, wrapped
from tests.zoo.specimen import Specimen

VOCABULARY = 99

Inputs = tuple[torch.Tensor, ...]
Shape = Mapping[int, Any]


@dataclass(frozen=True)
class Architecture:
    name: str
    model: str  # a class of transformers
    config: Callable[[], Any]
    takes: Mapping[str, Callable[..., torch.Tensor]]  # how each input is made at some sizes
    sizes: Sequence[tuple[int, ...]]  # of the calls; it is traced with the first
    gives: tuple[str, ...] = ()  # which results; empty: `ptegpu export hf` makes a module of it
    task: str = ""  # where that does not say it
    dynamic: Mapping[str, Shape] = field(default_factory=dict)  # which sizes may change, where that does not say it
    why: str = ""  # there is a host step, or more than two plans

    @property
    def hf(self) -> str | None:
        """The task that `ptegpu export hf` exports it for."""
        return None if self.gives else task_of(self.model, KINDS[next(iter(self.takes))])

    def made(self) -> Made:
        """The same weights each time."""
        torch.manual_seed(0)
        with quiet():
            model = _alive(getattr(importlib.import_module("transformers"), self.model)(self.config()))
            made = self._made(model)
            norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
            for norm in norms:
                norm.momentum = 1.0
            if norms:  # the statistics of a call, so that what goes through is of scale 1
                made.module.train()(*made.inputs(50, self.sizes[0]))
        made.module.requires_grad_(False).eval()
        return made

    def _made(self, model: nn.Module) -> Made:
        if self.gives:
            module = Taking(model, tuple(self.takes), self.gives)
            dynamic = (tuple(self.dynamic.get(name) for name in self.takes),) if self.dynamic else None
            return Made(module, dynamic, list(self.takes.values()))
        module, example, dynamic = wrapped(model, self.hf, BOUNDS)
        takes = list(self.takes.values())
        if len(example) > len(takes):  # token types
            takes.append(lambda *sizes: torch.randint(0, 2, sizes))
        return Made(module, dynamic, takes, None if 0 in (dynamic[0] or {}) else example[0].shape[0])


class Made(NamedTuple):
    """A module with random weights, and what goes in."""

    module: nn.Module
    dynamic: Any
    takes: Sequence[Callable[..., torch.Tensor]]
    batch: int | None = None  # if it cannot change

    @property
    def sizes(self) -> tuple[str, ...]:
        """That may change."""
        dims = {d for shape in tree_leaves(self.dynamic, is_leaf=lambda x: isinstance(x, dict)) if shape for d in shape}
        return tuple(name for d, name in enumerate(("batch", "length")) if d in dims)

    def inputs(self, seed: int, sizes: Sequence[int]) -> Inputs:
        torch.manual_seed(seed)
        return tuple(make(self.batch or sizes[0], *sizes[1:]) for make in self.takes)


class Taking(nn.Module):
    """A model that takes its inputs in an order, and gives some of its results."""

    def __init__(self, model: nn.Module, takes: tuple[str, ...], gives: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.takes, self.gives = model, takes, gives

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.model(**dict(zip(self.takes, inputs, strict=True)))
        return tuple(found[name] for name in self.gives)


def _alive(model: nn.Module) -> nn.Module:
    """Weights by which every part of the model reaches its results at scale 1: those of a new one hide most of it."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.2 / max(parameter[0].numel(), 1) ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


# What goes in.


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def padding(batch: int, length: int) -> torch.Tensor:
    """1 for what is real: all of the first text, and the beginning of the others."""
    lengths = torch.randint(1, length + 1, (batch, 1))
    lengths[0] = length
    return (torch.arange(length) < lengths).long()


def pixels(batch: int, size: int) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def sound(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length)


BOUNDS = Bounds(batch=4, length=32, seconds=0.15)
BATCH = Dim("batch", min=1, max=4)
LENGTH = Dim("length", min=2, max=32)
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
LOGITS = ("logits",)
TEXTS = [(2, 12), (3, 7)]


def _config(name: str, **settings: Any) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module("transformers"), f"{name}Config")(**settings)


def text(name: str, model: str, config: str, why: str = "", **settings: Any) -> Architecture:
    """Token ids and a mask, of any number of texts of any length."""
    takes = {"input_ids": tokens, "attention_mask": padding}
    return Architecture(name, model, _config(config, **SMALL | settings), takes, TEXTS, why=why)


def words(
    name: str,
    model: str,
    config: str,
    task: str,
    gives: str = "logits",
    decoder: bool = False,
    why: str = "",
    **settings: Any,
) -> Architecture:
    """The same where `ptegpu export hf` has no such task; some have a decoder, with tokens of its own."""
    takes: dict[str, Callable[..., torch.Tensor]] = {"input_ids": tokens, "attention_mask": padding}
    dynamic = {name: {0: BATCH, 1: LENGTH} for name in takes}
    if decoder:
        takes["decoder_input_ids"] = lambda b, t: tokens(b, t // 2)
        dynamic["decoder_input_ids"] = {0: BATCH, 1: Dim("words", min=2, max=16)}
    made = _config(config, **SMALL | settings)
    return Architecture(name, model, made, takes, TEXTS, (gives,), task, dynamic, why)


def image(
    name: str,
    model: str,
    config: str | Callable[[], Any],
    gives: tuple[str, ...] = (),
    task: str = "",
    size: int = 32,
    why: str = "",
    **settings: Any,
) -> Architecture:
    """Pictures of one size, any number of them."""
    made = _config(config, **settings) if isinstance(config, str) else config
    dynamic = {"pixel_values": {0: BATCH}} if gives else {}
    takes, sizes = {"pixel_values": pixels}, [(2, size), (3, size)]
    return Architecture(name, model, made, takes, sizes, gives, task, dynamic, why)


VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
STAGES = {"depths": [1, 1, 2, 1], "hidden_sizes": [8, 16, 24, 32]}
DISENTANGLED = {
    "relative_attention": True,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
SOUND = {
    "vocab_size": 20,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
PYRAMID = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 4]}


def waves(name: str, model: str, config: str, why: str = "", **settings: Any) -> Architecture:
    """Samples of one sound, of any length."""
    made = _config(config, **SOUND | settings)
    sizes = [(1, 1600), (1, 1111)]
    return Architecture(name, model, made, {"input_values": sound}, sizes, why=why)


def _whisper() -> Any:
    return _config("Whisper", vocab_size=VOCABULARY, num_mel_bins=8, max_source_positions=20, pad_token_id=0, **BART)()


def _depth_anything() -> Any:
    reads = {"out_features": ["stage1", "stage2"], "reshape_hidden_states": False}
    backbone = _config("Dinov2", mlp_ratio=2, **VIT, **reads)()
    return _config(
        "DepthAnything",
        backbone_config=backbone,
        patch_size=8,
        reassemble_hidden_size=32,
        reassemble_factors=[2, 1],
        neck_hidden_sizes=[8, 16],
        fusion_hidden_size=8,
        head_hidden_size=8,
    )()


def _detr() -> Any:
    resnet = _config("ResNet", embedding_size=8, out_features=["stage4"], **STAGES)()
    return _config("Detr", backbone_config=resnet, use_timm_backbone=False, num_queries=5, num_labels=6, **BART)()


def _two(config: str, common: Mapping[str, Any], words: Mapping[str, Any], pictures: Mapping[str, Any]) -> Any:
    """Of a model with two towers."""
    return lambda: _config(config, text_config=dict(words), vision_config=dict(pictures), **common)()


ALIBI = (
    "positions are sums and products of the mask's int64, whatever the caller gave; only the host has them exactly. It "
    "computes them before the GPU begins."
)
QUICK = ("RoBERTa", "Swin")  # what `make test` runs of these
ARCHITECTURES: list[Architecture] = [
    # Texts.
    text("BERT", "BertModel", "Bert"),
    text("MiniLM", "BertModel", "Bert", num_hidden_layers=3, hidden_size=24, num_attention_heads=3),
    text("RoBERTa", "RobertaForSequenceClassification", "Roberta"),
    text("XLM-RoBERTa", "XLMRobertaForTokenClassification", "XLMRoberta"),
    text("CamemBERT", "CamembertForMaskedLM", "Camembert"),
    text(
        "DistilBERT", "DistilBertForSequenceClassification", "DistilBert", dim=32, n_heads=4, n_layers=2, hidden_dim=48
    ),
    text("ALBERT", "AlbertForMaskedLM", "Albert", embedding_size=16),
    text("ELECTRA", "ElectraForQuestionAnswering", "Electra", embedding_size=16),
    text("DeBERTa-v2", "DebertaV2ForTokenClassification", "DebertaV2", **DISENTANGLED),
    text("MPNet", "MPNetModel", "MPNet"),
    text(
        "ModernBERT",
        "ModernBertForMaskedLM",
        "ModernBert",
        num_hidden_layers=3,
        local_attention=8,
        global_attn_every_n_layers=3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    text("Nomic BERT", "NomicBertModel", "NomicBert"),
    text("T5 encoder", "T5EncoderModel", "T5", **T5),
    text("Llama classifier", "LlamaForSequenceClassification", "Llama", num_key_value_heads=2, pad_token_id=0),
    words(
        "CLIP text",
        "CLIPTextModelWithProjection",
        "CLIPText",
        "text embeddings",
        "text_embeds",
        projection_dim=16,
        eos_token_id=2,
    ),
    words("T5", "T5ForConditionalGeneration", "T5", "text to text", decoder=True, **T5),
    words("BART", "BartForConditionalGeneration", "Bart", "text to text", decoder=True, **BART),
    words("GPT-2", "GPT2LMHeadModel", "GPT2", "next token", n_inner=48),
    words("BLOOM", "BloomForCausalLM", "Bloom", "next token", why=ALIBI, n_layer=2, n_head=4),
    # Pictures.
    image("ViT", "ViTForImageClassification", "ViT", **VIT),
    image("DeiT", "DeiTForImageClassification", "DeiT", **VIT),
    image("BEiT", "BeitForImageClassification", "Beit", use_relative_position_bias=True, **VIT),
    image("DINOv2", "Dinov2Model", "Dinov2", **VIT),
    image(
        "CLIP vision",
        "CLIPVisionModelWithProjection",
        "CLIPVision",
        ("image_embeds",),
        "image embeddings",
        projection_dim=16,
        **VIT,
    ),
    image("Swin", "SwinForImageClassification", "Swin", size=64, **SWIN),
    image("Swin v2", "Swinv2ForImageClassification", "Swinv2", size=64, **SWIN),
    image("ConvNeXt", "ConvNextForImageClassification", "ConvNext", **STAGES),
    image("ResNet", "ResNetForImageClassification", "ResNet", embedding_size=8, **STAGES),
    image("RegNet", "RegNetForImageClassification", "RegNet", embedding_size=8, groups_width=8, **STAGES),
    image(
        "MobileNet v2",
        "MobileNetV2ForImageClassification",
        "MobileNetV2",
        size=64,
        image_size=64,
        depth_multiplier=0.25,
    ),
    image(
        "EfficientNet",
        "EfficientNetForImageClassification",
        "EfficientNet",
        image_size=32,
        width_coefficient=0.25,
        depth_coefficient=0.25,
        hidden_dim=320,
    ),
    image(
        "PoolFormer",
        "PoolFormerForImageClassification",
        "PoolFormer",
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 24, 32],
    ),
    image(
        "SegFormer",
        "SegformerForSemanticSegmentation",
        "Segformer",
        decoder_hidden_size=16,
        sr_ratios=[4, 2, 2, 1],
        **PYRAMID,
    ),
    image("Depth Anything", "DepthAnythingForDepthEstimation", _depth_anything),
    image(
        "YOLOS",
        "YolosForObjectDetection",
        "Yolos",
        ("logits", "pred_boxes"),
        "detection",
        **VIT | {"image_size": [32, 32], "num_detection_tokens": 5},
    ),
    image("DETR", "DetrForObjectDetection", _detr, ("logits", "pred_boxes"), "detection", size=64),
    # Sounds.
    Architecture(
        "Whisper encoder",
        "WhisperForAudioClassification",
        _whisper,
        {"input_features": lambda b: torch.randn(b, 8, 40)},
        [(1,)],
    ),
    waves("Wav2Vec2", "Wav2Vec2ForCTC", "Wav2Vec2"),
    waves("HuBERT", "HubertForCTC", "Hubert"),
    waves("WavLM", "WavLMForCTC", "WavLM", num_buckets=32, max_bucket_distance=64),
    Architecture(
        "AST",
        "ASTForAudioClassification",
        _config(
            "AST",
            **{k: VIT[k] for k in list(VIT)[:4]},
            patch_size=4,
            num_mel_bins=16,
            max_length=32,
            frequency_stride=4,
            time_stride=4,
        ),
        {"input_values": lambda b: torch.randn(b, 32, 16)},
        [(1,)],
    ),
    # Both.
    Architecture(
        "CLIP",
        "CLIPModel",
        _two("CLIP", {"projection_dim": 16}, SMALL | {"eos_token_id": 2}, VIT),
        {"input_ids": tokens, "attention_mask": padding, "pixel_values": lambda b, t: pixels(b, 32)},
        TEXTS,
        ("logits_per_image",),
        "zero-shot image classification",
        {"input_ids": {0: BATCH, 1: LENGTH}, "attention_mask": {0: BATCH, 1: LENGTH}, "pixel_values": {0: BATCH}},
    ),
]


def _specimen(a: Architecture) -> Specimen:
    return Specimen(lambda: a.made().module, lambda: a.made().inputs(0, a.sizes[0]))


SPECIMENS = {a.name: _specimen(a) for a in ARCHITECTURES}
