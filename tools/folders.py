"""Model folders in the layout of the Hugging Face Hub, with real shapes and random weights, made without a network.

    python -m tools.folders build/models

makes MiniLM, ViT, Whisper and Llama, a picture and a sound, and prints the command that uses each.
"""

from __future__ import annotations

import argparse
import json
import wave
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers as t
from PIL import Image
from tests.zoo.tasks import make_sentences

LANGUAGES = 99
END = 50257  # of Whisper; words have smaller ids
START, TRANSLATE, TRANSCRIBE = END + 1, END + 2 + LANGUAGES, END + 3 + LANGUAGES
LAST = TRANSCRIBE + 4  # <|notimestamps|>


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.manual_seed(0)
    t.utils.logging.disable_progress_bar()
    for name, make in {"minilm": minilm, "vit": vit, "whisper": whisper, "llama": llama}.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        make(folder / name)
    random = np.random.default_rng(0)
    picture = np.kron(random.integers(0, 256, (6, 8, 3), np.uint8), np.ones((40, 40, 1), np.uint8))
    Image.fromarray(picture).save(folder / "picture.png")
    with wave.open(str(folder / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        times = np.arange(5 * 16000) / 16000
        tones = np.sin(2 * np.pi * times * 220 * (1 + (times % 1)))
        file.writeframes((8000 * tones).astype("<i2").tobytes())
    for line in (
        f"ptegpu run {folder}/minilm --text 'A cat sat on the mat.'",
        f"ptegpu run {folder}/vit --image {folder}/picture.png",
        f"ptegpu transcribe {folder}/sound.wav --model {folder}/whisper",
        f"ptegpu generate {folder}/llama 'Once upon a time'",
    ):
        print(line)


def minilm(folder: Path) -> None:
    config = t.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    t.BertModel(config).save_pretrained(folder)
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(words))
    t.BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    if not (folder / "modules.json").exists():
        make_sentences(folder)
    pooling = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')


def vit(folder: Path) -> None:
    config = t.ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
    config.num_labels = 1000
    t.ViTForImageClassification(config).save_pretrained(folder)
    t.ViTImageProcessor().save_pretrained(folder)


def whisper(folder: Path) -> None:
    """Write a model of the shape of whisper-tiny."""
    config = t.WhisperConfig(
        vocab_size=LAST + 1502, d_model=384, encoder_attention_heads=6, decoder_attention_heads=6, decoder_layers=4
    )
    model = t.WhisperForConditionalGeneration(config)
    model.generation_config = t.GenerationConfig(
        eos_token_id=END,
        decoder_start_token_id=START,
        max_length=448,
        no_timestamps_token_id=LAST,
        max_initial_timestamp_index=50,
        is_multilingual=True,
        lang_to_id={f"<|{name}|>": START + 1 + k for k, name in enumerate(["en", "zh", "de", "es"])},
        task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
        suppress_tokens=list(range(START, LAST)),
        begin_suppress_tokens=[220, END],
    )
    model.save_pretrained(folder)
    t.WhisperFeatureExtractor().save_pretrained(folder)
    text = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"word{k}": k for k in range(END)}, unk_token="word0"))
    text.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    languages = ["en", "zh", "de", "es", *(f"language{k}" for k in range(4, LANGUAGES))]
    names = ["endoftext", "startoftranscript", *languages, "translate", "transcribe", "startoflm", "startofprev"]
    text.add_special_tokens([f"<|{name}|>" for name in (*names, "nospeech", "notimestamps")])
    text.add_tokens([tokenizers.AddedToken(f"<|{k * 0.02:.2f}|>", special=False) for k in range(1501)])
    text.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))


def llama(folder: Path) -> None:
    """Write a model of the shape of SmolLM-135M, with a third of its layers, and bytes as tokens."""
    config = t.LlamaConfig(
        vocab_size=257,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=10,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=256,
    )
    t.LlamaForCausalLM(config).save_pretrained(folder)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    text = tokenizers.Tokenizer(tokenizers.models.BPE({letter: k for k, letter in enumerate(letters)}, []))
    text.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    text.decoder = tokenizers.decoders.ByteLevel()
    text.add_special_tokens(["<|end|>"])
    text.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))


if __name__ == "__main__":
    main()
