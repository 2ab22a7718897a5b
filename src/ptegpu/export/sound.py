"""`config.json` of a Whisper checkpoint, and what its other files say about tokens and sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ExportError, PtegpuError
from ..files import check_checkpoint, read_object
from ..models.kinds import SPEECH_TYPE
from ..models.parts import MOST, Speech
from .config import ACTIVATIONS
from .family import MOST_LAYERS
from .keys import Keys


@dataclass(frozen=True, slots=True)
class Config:
    vocab: int
    dim: int
    encoder_layers: int
    encoder_heads: int
    encoder_hidden: int
    decoder_layers: int
    decoder_heads: int
    decoder_hidden: int
    activation: str
    scaled: bool  # embeddings of tokens
    context: int  # tokens
    frames: int  # that one call hears
    mels: int
    hop: int = 160  # samples from one frame to the next
    window: int = 400  # samples of a frame
    rate: int = 16000  # samples in a second


def read_sound_config(folder: Path) -> tuple[Config, Speech]:
    """From `config.json`, `generation_config.json` and `preprocessor_config.json`."""
    check_checkpoint(folder, ExportError)
    path = folder / "config.json"
    try:
        given = read_object(path, ExportError)
        if given.get("model_type") != SPEECH_TYPE:
            raise ExportError(f"{path}: model_type {given.get('model_type')!r} is not {SPEECH_TYPE}")
        config = _config(path, given, _optional(folder / "preprocessor_config.json"))
        return config, _speech(config, given, _optional(folder / "generation_config.json"))
    except PtegpuError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as e:  # values of another kind
        raise ExportError(f"{path} cannot be understood: {e}") from None


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path, ExportError) if path.is_file() else {}


def _config(path: Path, given: Mapping[str, Any], sound: Mapping[str, Any]) -> Config:
    reader, heard = Keys(path, given), Keys(path.with_name("preprocessor_config.json"), sound)
    activation = given.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise ExportError(f"{path}: activation_function {activation!r} is not supported")
    config = Config(
        vocab=reader.count("vocab_size", most=MOST),
        dim=reader.count("d_model", most=MOST),
        encoder_layers=reader.count("encoder_layers", most=MOST_LAYERS),
        encoder_heads=reader.count("encoder_attention_heads"),
        encoder_hidden=reader.count("encoder_ffn_dim"),
        decoder_layers=reader.count("decoder_layers", most=MOST_LAYERS),
        decoder_heads=reader.count("decoder_attention_heads"),
        decoder_hidden=reader.count("decoder_ffn_dim"),
        activation=activation,
        scaled=bool(given.get("scale_embedding", False)),
        context=reader.count("max_target_positions", 448, most=1 << 16),
        frames=2 * reader.count("max_source_positions", 1500, most=1 << 16),
        mels=reader.count("num_mel_bins", 80, most=1 << 10),
        hop=heard.count("hop_length", 160, most=1 << 12),
        window=heard.count("n_fft", 400, most=1 << 13),
        rate=heard.count("sampling_rate", 16000, most=1 << 20),
    )
    if config.dim % config.encoder_heads or config.dim % config.decoder_heads:
        raise ExportError(f"{path}: d_model {config.dim} does not divide into heads")
    if heard.count("feature_size", config.mels) != config.mels or config.window > 2 * config.hop + config.hop:
        raise ExportError(f"{heard.path}: feature_size, n_fft and hop_length do not fit {path.name}")
    return config


def _speech(config: Config, given: Mapping[str, Any], generation: Mapping[str, Any]) -> Speech:
    def value(key: str) -> Any:
        return generation.get(key, given.get(key))

    languages, tasks, no_timestamps = value("lang_to_id"), value("task_to_id"), value("no_timestamps_token_id")
    several = bool(languages) and value("is_multilingual") is not False
    end = value("eos_token_id")
    made = Speech(
        rate=config.rate,
        hop=config.hop,
        window=config.window,
        frames=config.frames,
        mels=config.mels,
        context=config.context,
        vocab=config.vocab,
        start=value("decoder_start_token_id"),
        end=end[0] if isinstance(end, list) else end,
        no_timestamps=no_timestamps,
        initial=value("max_initial_timestamp_index"),
        no_speech=None if no_timestamps is None else no_timestamps - 1,
        languages={name.strip("<|>"): token for name, token in languages.items()} if several else None,
        tasks=dict(tasks) if several and tasks else None,
        suppressed=tuple(t for t in value("suppress_tokens") or () if t >= 0),
        suppressed_first=tuple(t for t in value("begin_suppress_tokens") or () if t >= 0),
    )
    made.check()
    return made
