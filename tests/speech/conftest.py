"""The tiny model, exported once, and on the GPU. PyTorch is imported by the fixtures that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ptegpu.models.speech import SpeechModel


@pytest.fixture(scope="session")
def reference() -> Any:
    from tests.speech import tiny

    return tiny.model()


@pytest.fixture(scope="session")
def folder(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder."""
    from tests.speech import tiny

    return tiny.save(reference, tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="session")
def exported(folder: Path) -> Any:
    """What was made of it: whisper.pte in the folder beside it."""
    from ptegpu.export import export_speech

    target = folder.with_name(f"{folder.name}-pte")
    target.mkdir()
    return export_speech(folder, target / "whisper.pte")


@pytest.fixture(scope="session")
def model(exported: Any) -> Iterator[SpeechModel]:
    with SpeechModel(exported.files[0]) as loaded:
        yield loaded
