"""The tiny model, exported once and loaded. Fixtures import PyTorch only where they need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import zoo

from ptegpu.models.speech import SpeechModel


@pytest.fixture(scope="session")
def reference() -> Any:
    from tests.zoo import hearing

    return hearing.model()


@pytest.fixture(scope="session")
def folder() -> Path:
    """Return a checkpoint folder."""
    return zoo.folder("hearing", "whisper")


@pytest.fixture(scope="session")
def exported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Export the checkpoint to whisper.pte."""
    from ptegpu.export import export_speech

    return export_speech(folder, tmp_path_factory.mktemp("whisper") / "whisper.pte")


@pytest.fixture(scope="session")
def model(exported: Any) -> Iterator[SpeechModel]:
    with SpeechModel(exported.files[0]) as loaded:
        yield loaded
