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
    input_makers: Mapping[str, Callable[..., torch.Tensor]]  # make each input at some sizes
    sizes: Sequence[tuple[int, ...]]  # of the calls; the first one is traced
    outputs: tuple[str, ...] = ()  # names of results; empty: those of `ptegpu export hf`
    task: str = ""  # unless `ptegpu export hf` names it
    dynamic: Mapping[str, Shape] = field(default_factory=dict)  # dynamic sizes, unless it names them
    why: str = ""  # the reason for a host step or for more than two plans

    @property
    def hf(self) -> str | None:
        """Return the task that `ptegpu export hf` exports it for, or None."""
        return None if self.outputs else task_of(self.model, KINDS[next(iter(self.input_makers))])

    def build(self) -> BuiltModel:
        """Return the model with random weights, the same ones each time."""
        torch.manual_seed(0)
        with quiet():
            model = _alive(getattr(importlib.import_module("transformers"), self.model)(self.config()))
            built = self._build(model)
            norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
            for norm in norms:
                norm.momentum = 1.0
            if norms:  # the statistics of a call keep activations at scale 1
                built.module.train()(*built.inputs(50, self.sizes[0]))
        built.module.requires_grad_(False).eval()
        return built

    def _build(self, model: nn.Module) -> BuiltModel:
        if self.outputs:
            module = SelectedOutputs(model, tuple(self.input_makers), self.outputs)
            dynamic = (tuple(self.dynamic.get(name) for name in self.input_makers),) if self.dynamic else None
            return BuiltModel(module, dynamic, list(self.input_makers.values()))
        module, example, dynamic = wrapped(model, self.hf, BOUNDS)
        makers = list(self.input_makers.values())
        if len(example) > len(makers):  # token types
            makers.append(lambda *sizes: torch.randint(0, 2, sizes))
        return BuiltModel(module, dynamic, makers, None if 0 in (dynamic[0] or {}) else example[0].shape[0])


class BuiltModel(NamedTuple):
    """A module with random weights, and the makers of its inputs."""

    module: nn.Module
    dynamic: Any
    input_makers: Sequence[Callable[..., torch.Tensor]]
    batch: int | None = None  # None: dynamic

    @property
    def sizes(self) -> tuple[str, ...]:
        """Return the names of the dynamic sizes."""
        dims = {d for shape in tree_leaves(self.dynamic, is_leaf=lambda x: isinstance(x, dict)) if shape for d in shape}
        return tuple(name for d, name in enumerate(("batch", "length")) if d in dims)

    def inputs(self, seed: int, sizes: Sequence[int]) -> Inputs:
        torch.manual_seed(seed)
        return tuple(make(self.batch or sizes[0], *sizes[1:]) for make in self.input_makers)


class SelectedOutputs(nn.Module):
    """A model with positional inputs that returns some of its results."""

    def __init__(self, model: nn.Module, input_names: tuple[str, ...], output_names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.input_names, self.output_names = model, input_names, output_names

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = self.model(**dict(zip(self.input_names, inputs, strict=True)))
        return tuple(results[name] for name in self.output_names)


def _alive(model: nn.Module) -> nn.Module:
    """Set weights with which every part of the model affects its results; those of a new model hide most of it."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.2 / max(parameter[0].numel(), 1) ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


# Makers of inputs.


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def padding(batch: int, length: int) -> torch.Tensor:
    """Return a mask with 1 for real tokens: the whole first text and the beginning of the others."""
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
    """Describe a model of token ids and a mask, with any batch and length."""
    makers = {"input_ids": tokens, "attention_mask": padding}
    return Architecture(name, model, _config(config, **SMALL | settings), makers, TEXTS, why=why)


def words(
    name: str,
    model: str,
    config: str,
    task: str,
    output: str = "logits",
    decoder: bool = False,
    why: str = "",
    **settings: Any,
) -> Architecture:
    """Describe a text model for a task that `ptegpu export hf` lacks; a decoder has tokens of its own."""
    makers: dict[str, Callable[..., torch.Tensor]] = {"input_ids": tokens, "attention_mask": padding}
    dynamic = {name: {0: BATCH, 1: LENGTH} for name in makers}
    if decoder:
        makers["decoder_input_ids"] = lambda b, t: tokens(b, t // 2)
        dynamic["decoder_input_ids"] = {0: BATCH, 1: Dim("words", min=2, max=16)}
    make_config = _config(config, **SMALL | settings)
    return Architecture(name, model, make_config, makers, TEXTS, (output,), task, dynamic, why)


def image(
    name: str,
    model: str,
    config: str | Callable[[], Any],
    outputs: tuple[str, ...] = (),
    task: str = "",
    size: int = 32,
    why: str = "",
    **settings: Any,
) -> Architecture:
    """Describe a model of pictures of one size, with any batch."""
    make_config = _config(config, **settings) if isinstance(config, str) else config
    dynamic = {"pixel_values": {0: BATCH}} if outputs else {}
    makers, sizes = {"pixel_values": pixels}, [(2, size), (3, size)]
    return Architecture(name, model, make_config, makers, sizes, outputs, task, dynamic, why)


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
    """Describe a model of the samples of one sound, of any length."""
    make_config = _config(config, **SOUND | settings)
    sizes = [(1, 1600), (1, 1111)]
    return Architecture(name, model, make_config, {"input_values": sound}, sizes, why=why)


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
    """Return the maker of the config of a model with a text and a vision tower."""
    return lambda: _config(config, text_config=dict(words), vision_config=dict(pictures), **common)()


ALIBI = (
    "positions are sums and products of the mask's int64, whatever the caller gave; only the host has them exactly. It "
    "computes them before the GPU begins."
)
QUICK = ("RoBERTa", "Swin")  # run by `make test`
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
    return Specimen(lambda: a.build().module, lambda: a.build().inputs(0, a.sizes[0]))


SPECIMENS = {a.name: _specimen(a) for a in ARCHITECTURES}
