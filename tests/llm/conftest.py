"""The tiny model, exported once with logits of the last position and once with logits of every position.

Fixtures import PyTorch only where they need it, since some tests here run without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tokenizers
from tests.zoo.words import write_tokenizer

from ptegpu.models.text import LanguageModel

if TYPE_CHECKING:
    from tests.zoo.language import TinyLM


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.zoo import language

    target = tmp_path_factory.mktemp("llm")
    language.export(language.TinyLM(), target / "tiny.pte", get_eos_ids=[1, 3])
    language.export(language.TinyLM(every=True), target / "every.pte", chunk=40)
    write_tokenizer(target / "tiny.pte")
    write_tokenizer(target / "every.pte")
    return target


@pytest.fixture(scope="session")
def eager() -> TinyLM:
    from tests.zoo.language import TinyLM

    return TinyLM()


@pytest.fixture(scope="session")
def text(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tiny.tokenizer.json"))


@pytest.fixture(scope="session")
def loaded(folder: Path) -> Iterator[LanguageModel]:
    with LanguageModel(folder / "tiny.pte") as model:
        yield model


@pytest.fixture
def model(loaded: LanguageModel) -> LanguageModel:
    """Return the loaded model with an empty cache."""
    loaded.reset()
    loaded.runner.chunk = loaded.signature.chunk
    return loaded


@pytest.fixture(scope="session")
def every(folder: Path) -> Iterator[LanguageModel]:
    with LanguageModel(folder / "every.pte") as model:
        yield model
