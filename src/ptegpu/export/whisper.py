"""A Whisper checkpoint as three modules that export: sound to log-mel, log-mel to keys and values, tokens to logits.

Called as they are, they are plain PyTorch and serve as the reference; exported, attention is the GPU's operator.
Modules of the encoder and the decoder have the names that checkpoints use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ExportError
from ..files import check_checkpoint, read_object
from ..models.kinds import SPEECH_TYPE
from ..models.media import slaney_filters
from ..models.parts import MOST, Speech
from .config_keys import MOST_LAYERS, ConfigKeys, interpreting, read_optional
from .transformer import ACTIVATIONS, FullAttention, KeyValueCache, check_position

FLOOR = 1e-10  # of power, before the logarithm


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    dim: int
    encoder_layers: int
    encoder_heads: int
    encoder_hidden: int
    decoder_layers: int
    decoder_heads: int
    decoder_hidden: int
    activation: str
    scaled: bool  # embeddings of tokens
    speech: Speech  # sizes of sound and text, and special tokens

    @property
    def vocab(self) -> int:
        return self.speech.vocab


def read_whisper(folder: Path) -> WhisperConfig:
    """Read `config.json`, `generation_config.json` and `preprocessor_config.json`."""
    check_checkpoint(folder, ExportError)
    path = folder / "config.json"
    with interpreting(path):
        values = read_object(path, ExportError)
        if values.get("model_type") != SPEECH_TYPE:
            raise ExportError(f"{path}: model_type {values.get('model_type')!r} is not {SPEECH_TYPE}")
        keys = ConfigKeys(path, values)
        config = WhisperConfig(
            dim=keys.count("d_model", most=MOST),
            encoder_layers=keys.count("encoder_layers", most=MOST_LAYERS),
            encoder_heads=keys.count("encoder_attention_heads"),
            encoder_hidden=keys.count("encoder_ffn_dim"),
            decoder_layers=keys.count("decoder_layers", most=MOST_LAYERS),
            decoder_heads=keys.count("decoder_attention_heads"),
            decoder_hidden=keys.count("decoder_ffn_dim"),
            activation=keys.activation("activation_function", keys.get("activation_function", "gelu")),
            scaled=keys.flag("scale_embedding"),
            speech=_speech(folder, keys),
        )
    if config.dim % config.encoder_heads or config.dim % config.decoder_heads:
        raise keys.error(f"d_model {config.dim} does not divide into heads")
    return config


def _speech(folder: Path, keys: ConfigKeys) -> Speech:
    preprocessor = folder / "preprocessor_config.json"
    sound = ConfigKeys(preprocessor, read_optional(preprocessor))
    value: Callable[[str], Any] = {**keys.values, **read_optional(folder / "generation_config.json")}.get
    languages, tasks, no_timestamps = value("lang_to_id"), value("task_to_id"), value("no_timestamps_token_id")
    multilingual = bool(languages) and value("is_multilingual") is not False
    end = value("eos_token_id")
    speech = Speech(
        rate=sound.count("sampling_rate", 16000, most=1 << 20),
        hop=sound.count("hop_length", 160, most=1 << 12),
        window=sound.count("n_fft", 400, most=1 << 13),
        frames=2 * keys.count("max_source_positions", 1500, most=1 << 16),
        mels=keys.count("num_mel_bins", 80, most=1 << 10),
        context=keys.count("max_target_positions", 448, most=1 << 16),
        vocab=keys.count("vocab_size", most=MOST),
        start=value("decoder_start_token_id"),
        end=end[0] if isinstance(end, list) else end,
        no_timestamps=no_timestamps,
        initial=value("max_initial_timestamp_index"),
        no_speech=None if no_timestamps is None else no_timestamps - 1,
        languages={name.strip("<|>"): token for name, token in languages.items()} if multilingual else None,
        tasks=dict(tasks) if multilingual and tasks else None,
        suppressed=tuple(t for t in value("suppress_tokens") or () if t >= 0),
        suppressed_first=tuple(t for t in value("begin_suppress_tokens") or () if t >= 0),
    )
    if sound.count("feature_size", speech.mels) != speech.mels or speech.window > 3 * speech.hop:
        raise sound.error("feature_size, n_fft and hop_length do not fit config.json")
    speech.check()
    return speech


class LogMel(nn.Module):
    """samples (1, (F + 2) · hop) → log10 of the power in each band, (F, mels). Frame k begins at sample k · hop."""

    def __init__(self, speech: Speech) -> None:
        super().__init__()
        self.hop, self.frames, self.width = speech.hop, speech.frames, speech.window
        bins = speech.window // 2 + 1
        n = np.arange(speech.window)
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / speech.window)
        turns = 2 * np.pi * (np.outer(np.arange(bins), n) % speech.window) / speech.window
        self.register_buffer("cosines", torch.tensor(np.cos(turns) * hann, dtype=torch.float32))  # (bins, window)
        self.register_buffer("sines", torch.tensor(np.sin(turns) * hann, dtype=torch.float32))
        bands = np.ascontiguousarray(slaney_filters(speech.mels, speech.rate, bins).T)
        self.register_buffer("bands", torch.tensor(bands, dtype=torch.float32))  # (mels, bins)

    def forward(self, samples: Tensor) -> Tensor:
        hops = samples.view(-1, self.hop)
        pieces = [
            hops[k : k + self.frames, : min(self.hop, self.width - k * self.hop)]
            for k in range(-(-self.width // self.hop))
        ]
        frames = torch.cat(pieces, dim=1)  # (F, window)
        real, imaginary = F.linear(frames, self.cosines), F.linear(frames, self.sines)  # (F, bins)
        power = F.linear(real * real + imaginary * imaginary, self.bands)  # (F, mels)
        return torch.log(power.clamp(min=FLOOR)) * (1 / math.log(10))


class WhisperLayer(nn.Module):
    """The parts of a layer whose names in checkpoints have no prefix of their own."""

    def __init__(self, dim: int, heads: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(dim, device="meta")
        self.final_layer_norm = nn.LayerNorm(dim, device="meta")
        self.fc1 = nn.Linear(dim, hidden, device="meta")
        self.fc2 = nn.Linear(hidden, dim, device="meta")
        self.activation = ACTIVATIONS[activation]
        self.self_attn = FullAttention(dim, heads, key_bias=False)

    def feed_forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.activation(self.fc1(self.final_layer_norm(x))))


class WhisperEncoderLayer(WhisperLayer):
    def forward(self, x: Tensor) -> Tensor:
        a, y = self.self_attn, self.self_attn_layer_norm(x)
        q, k, v = a.split(a.q_proj(y)), a.split(a.k_proj(y)), a.split(a.v_proj(y))
        return self.feed_forward(x + a.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)))


class WhisperEncoder(nn.Module):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.speech.mels, config.dim, 3, padding=1, device="meta")
        self.conv2 = nn.Conv1d(config.dim, config.dim, 3, stride=2, padding=1, device="meta")
        self.embed_positions = nn.Embedding(config.speech.frames // 2, config.dim, device="meta")
        shape = config.dim, config.encoder_heads, config.encoder_hidden, config.activation
        self.layers = nn.ModuleList(WhisperEncoderLayer(*shape) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(config.dim, device="meta")

    def forward(self, mel: Tensor) -> Tensor:
        """Return hidden states (1, F / 2, dim) of a spectrogram (1, mels, F)."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + self.embed_positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class WhisperDecoderLayer(WhisperLayer, KeyValueCache):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__(config.dim, config.decoder_heads, config.decoder_hidden, config.activation)
        self.encoder_attn = FullAttention(config.dim, config.decoder_heads, key_bias=False)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.dim, device="meta")
        self.allocate(config.speech.context, config.decoder_heads, config.dim // config.decoder_heads)

    def forward(self, x: Tensor, start: int, keys: Tensor, values: Tensor) -> Tensor:
        x = x + self._attend(self.self_attn_layer_norm(x), start)
        a = self.encoder_attn
        q = a.split(a.q_proj(self.encoder_attn_layer_norm(x)))
        return self.feed_forward(x + a.attend(q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)))

    def _attend(self, x: Tensor, start: int) -> Tensor:
        """Return attention over the tokens so far, including x (1, S, dim)."""
        a, length = self.self_attn, x.shape[1]
        q, k, v = a.split(a.q_proj(x)), a.split(a.k_proj(x)), a.split(a.v_proj(x))
        self.append(k, v, start)
        if torch.compiler.is_exporting():
            y = torch.ops.llama.custom_sdpa(q, self.keys, self.values, start, None, 0.0, True, a.head_dim**-0.5)
        else:
            k, v = self.keys[:, : start + length], self.values[:, : start + length]
            visible = torch.ones(length, start + length, dtype=torch.bool).tril(start)
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, visible).transpose(1, 2)
        return a.out_proj(y.reshape(1, length, -1))


class WhisperDecoder(nn.Module):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.dim) if config.scaled else 1.0
        self.embed_tokens = nn.Embedding(config.vocab, config.dim, device="meta")
        self.embed_positions = nn.Embedding(config.speech.context, config.dim, device="meta")
        self.layers = nn.ModuleList(WhisperDecoderLayer(config) for _ in range(config.decoder_layers))
        self.layer_norm = nn.LayerNorm(config.dim, device="meta")


class Whisper(nn.Module):
    """The model as checkpoints hold it. Its weights are on the device "meta" until a checkpoint is loaded."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = WhisperEncoder(config), WhisperDecoder(config)
        self.proj_out = nn.Linear(config.dim, config.vocab, bias=False, device="meta")


class Encode(nn.Module):
    """mel (1, mels, F) → keys and values (1, F / 2, H, D) of the sound for each layer of the decoder."""

    def __init__(self, model: Whisper) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.attentions = nn.ModuleList(layer.encoder_attn for layer in model.decoder.layers)

    def forward(self, mel: Tensor) -> list[Tensor]:
        x = self.encoder(mel)
        return [a.split(project(x)) for a in self.attentions for project in (a.k_proj, a.v_proj)]


class Decode(nn.Module):
    """tokens (1, S), the `position` (1) of the first, and the results of `Encode` → logits of the last token (1, V)."""

    def __init__(self, model: Whisper) -> None:
        super().__init__()
        self.context, self.decoder, self.proj_out = model.config.speech.context, model.decoder, model.proj_out

    def forward(self, tokens: Tensor, position: Tensor, heard: list[Tensor]) -> Tensor:
        length, start, decoder = tokens.shape[1], position[0].item(), self.decoder
        check_position(start, length, self.context)
        x = decoder.embed_tokens(tokens) * decoder.scale + decoder.embed_positions.weight.narrow(0, start, length)
        for k, layer in enumerate(decoder.layers):
            x = layer(x, start, heard[2 * k], heard[2 * k + 1])
        return self.proj_out(decoder.layer_norm(x[:, -1]))
