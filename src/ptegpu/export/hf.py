"""A Hugging Face folder of any model except decoders to a `.pte` with a card.

The folder may be untrusted: only safetensors, JSON and text files are read, none of its code is run, and a model that
is larger than its weights is refused before it is built. The tokenizer is written beside the program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import ExportError
from ..files import LARGEST, MODEL_OR_SENTENCE, check_checkpoint, check_inside, check_writable, read_object
from ..models.card import METHOD, Card
from ..models.kinds import DECODERS, LANGUAGE, SPEECH_TYPE, architecture, kind_of_folder
from ..models.tasks.specs import SENTENCES, TASKS, ZERO_SHOT, task_of
from ..progress import Progress, silent
from .backend import quiet, torch
from .checkpoint import TensorStore
from .hf_models import RATE, Bounds, SentencePooling, kind_of, wrapped
from .hf_processing import LOCAL, Processing, read_processing
from .hf_sentences import is_sentence_model, read_pooling, transformer_folder
from .lowering import FORWARD, CannotTrace, MethodSource
from .module import module_job
from .pipeline import Exported, ExportPipeline
from .quantize import DTYPES, NONE, check_choice, check_quantization
from .torch_errors import root_cause

READ = (".json", ".txt", ".model", ".safetensors")  # endings of files that this package or transformers reads
EXTRA = 1 << 26  # elements that a model may have beyond its weights, in computed tables
LAYERS = ("layer", "depth", "block", "stage")  # in the names of settings that count modules
LABELS = 1 << 16  # that a model without a classification head may list
LOCAL_KERNELS = ("eager", "sdpa", "grouped_mm", "batched_mm")  # implementations within transformers
SHOWN = 3  # names in a message

Shapes: TypeAlias = Mapping[str, Sequence[int]]  # of stored tensors, by name


@dataclass(frozen=True, slots=True)
class TaskSummary:
    card: Card
    parameters: int


def is_decoder(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a language model for `export_llm`."""
    check_checkpoint(Path(folder), ExportError, MODEL_OR_SENTENCE)
    return kind_of_folder(Path(folder)) in LANGUAGE


def export_hf(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    task: str | None = None,
    bounds: Bounds | None = None,
    dtype: str = "float32",
    quantize: str = NONE,
    delegate: bool = True,
    check: bool = True,
    progress: Progress = silent,
) -> Exported[TaskSummary]:
    """Write the program to `path`, and the tokenizer of a text model beside it.

    Without a `task`, `config.json` decides. With `check`, the program is compared with eager PyTorch first. If results
    differ by more than rounding, raise ExportError and write nothing. `quantize` is one of `QUANTIZATIONS`.
    """
    source, target = Path(folder), Path(path)
    check_writable(target)
    if task is not None:
        check_choice("task", task, TASKS)
    check_choice("dtype", dtype, DTYPES)
    check_quantization(quantize, delegate)
    pipeline = ExportPipeline(progress)
    with pipeline.phase("Reading weights"):
        model, task, parameters = load_model(source, task)
        finish = read_pooling(source) if TASKS[task].drawn == "embedding" else None
        bounds = bounds or Bounds()
        processing = read_processing(source, transformer_folder(source), model, task, bounds)

    def run(card: Card, source: MethodSource, delegate: bool) -> Exported[TaskSummary]:
        options, constants = {"force_fp16": True} if dtype == "float16" else {}, {METHOD: card.json()}
        summary = TaskSummary(card, parameters)
        return pipeline.run(module_job({FORWARD: source}, summary, quantize, delegate, options, constants, check))

    exported = _export(run, model, processing, bounds, finish, delegate)
    exported = replace(exported, notes=[*processing.notes, *exported.notes])
    return pipeline.write(exported, target, processing.tokenizer)


def _export(
    run: Callable[[Card, MethodSource, bool], Exported[TaskSummary]],
    model: Any,
    processing: Processing,
    bounds: Bounds,
    finish: SentencePooling | None,
    delegate: bool,
) -> Exported[TaskSummary]:
    """Return the program with dynamic sizes, or with fixed ones if the model fixes them; the card has its sizes."""
    card, text, audio = processing.card, processing.card.text, processing.card.audio
    assert card.task is not None
    if text is not None:
        bounds = replace(bounds, length=text.length)
    if audio is not None:
        bounds = replace(bounds, seconds=audio.most / RATE)
    module, args, shapes = wrapped(model, card.task, bounds, size=processing.size, finish=finish)
    largest = [_largest(x, dims) for x, dims in zip(args, shapes)]
    refusal = ""
    delegate = delegate and audio is None  # partitions would limit the length of sounds
    for partitions in (True, False) if delegate else (False,):
        try:
            exported = run(card, MethodSource(module, args, shapes), partitions)
        except CannotTrace as e:
            refusal = e.args[0]
            break
        if all(exported.lowered.bounds[k] == shape for k, shape in enumerate(largest)):
            return exported
        refusal = f"the model fixes {' and '.join(map(str, exported.lowered.bounds))}"
    processing.notes.append(f"the sizes of inputs are fixed: {refusal}")
    args = tuple(_resized(x, (1, *shape[1:])) for x, shape in zip(args, largest))
    fixed = replace(
        card,
        text=text and replace(text, batch=1, fixed=True),
        image=card.image and replace(card.image, batch=1),
        audio=audio and replace(audio, least=audio.most),
    )
    return run(fixed, MethodSource(module, args), delegate)


def _largest(x: torch.Tensor, dims: dict[int, Any] | None) -> tuple[int, ...]:
    return tuple(dims[d].max if dims and d in dims else size for d, size in enumerate(x.shape))


def _resized(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return an example input with another batch size and length."""
    return torch.nn.functional.pad(x.double()[:1], (0, shape[-1] - x.shape[-1]), value=1).to(x.dtype)


def load_model(folder: str | os.PathLike[str], task: str | None = None) -> tuple[Any, str, int]:
    """Return the model of a folder in float32, its task, and the number of parameters."""
    source = Path(folder)
    _check_files(source)
    task = task or _task(source)
    inner = transformer_folder(source)
    transformers = _transformers()
    settings = read_object(inner / "config.json", ExportError)
    name = architecture(settings) or settings.get("model_type", "?")
    stored = {name: shape for name, (_, _, shape) in TensorStore(inner).files.items()}
    _check_settings(settings, stored, name)
    with muted(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(inner, **LOCAL)
            auto = getattr(transformers, TASKS[task].auto)
            with torch.device("meta"):
                sketch = auto.from_config(config, trust_remote_code=False)
        except Exception as e:
            raise ExportError(f"{source}: {name} cannot be built for {task}: {root_cause(e)}") from e
        _check_size(sketch, stored, source)
        del sketch
        try:
            model, account = auto.from_pretrained(
                inner, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **LOCAL
            )
        except Exception as e:
            raise ExportError(f"{source}: the weights cannot be read: {root_cause(e)}") from e
    _check_loaded(model, account, task, source)
    return model, task, sum(p.numel() for p in model.parameters())


@contextmanager
def muted(transformers: Any) -> Iterator[None]:
    """Silence the logs and progress bars of transformers."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        with quiet():
            yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


def _transformers() -> Any:
    try:
        with quiet():
            import transformers
    except ImportError as e:
        raise ExportError(f"{e}. To export such folders, run: pip install 'ptegpu[hf]'") from e
    return transformers


def _check_files(folder: Path) -> None:
    """Raise ExportError if a file leads out of the folder or is too large, or the folder is an adapter."""
    check_checkpoint(folder, ExportError, MODEL_OR_SENTENCE)
    inner = transformer_folder(folder)
    for path in (path for place in {folder, inner} for path in place.iterdir()):
        if path.suffix in READ and path.is_file():
            check_inside(path, folder, ExportError)
            if path.suffix != ".safetensors" and path.stat().st_size > LARGEST:
                raise ExportError(f"{path} has more than {LARGEST:,} bytes")
    if (inner / "adapter_config.json").exists():
        raise ExportError(f"{folder} is an adapter of another model: merge it into that model first")


def _task(folder: Path) -> str:
    """Return the task that a folder is for."""
    if is_sentence_model(folder):
        return SENTENCES
    transformers = _transformers()
    settings = read_object(folder / "config.json", ExportError)
    name, model_type = architecture(settings), settings.get("model_type")
    model = getattr(transformers, name, None) if name else None
    task: str | None = None
    if isinstance(model, type) and issubclass(model, transformers.PreTrainedModel):
        if name.endswith("Model") and hasattr(model, "get_image_features") and hasattr(model, "get_text_features"):
            task = ZERO_SHOT
        else:
            task = task_of(name, kind_of(model))
    if task is None:
        hint = "; `ptegpu transcribe` is for speech" if model_type == SPEECH_TYPE else ""
        hint = "; `ptegpu export llm` is for language models" if name.endswith(DECODERS) else hint
        raise ExportError(
            f"{folder}: {name or model_type or 'config.json names no architecture, which'} has no task that can be "
            f"exported{hint}. Tasks are {', '.join(TASKS)}; --task chooses one"
        )
    return task


def _check_settings(settings: Mapping[str, Any], stored: Shapes, name: str) -> None:
    """Raise ExportError for a quantized model, or one whose construction would need much memory or the network."""
    if "quantization_config" in settings:
        raise ExportError(f"{name} is quantized: export a folder with weights in float32, float16 or bfloat16")
    tensors, largest = len(stored), max((size for shape in stored.values() for size in shape), default=0)

    def check_labels(key: str, count: int) -> None:
        if count > max(largest, LABELS):
            raise ExportError(f"config.json: {key} is {count:,}, but no tensor has more than {largest:,} rows")

    def values(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
        if depth > 8:
            raise ExportError("config.json is nested too deeply")
        if isinstance(value, dict):
            if key in ("id2label", "label2id"):
                check_labels(f"the length of {key}", len(value))
            backbone = value.get("backbone")
            if isinstance(backbone, str) and not value.get("backbone_config"):  # transformers would ask the Hub
                raise ExportError(
                    f"config.json: backbone is {backbone!r}, which is not in the folder; give backbone_config"
                )
            for k, v in value.items():
                yield from values(v, key if "implementation" in key else str(k), depth + 1)
        elif isinstance(value, list):
            for v in value:
                yield from values(v, key, depth + 1)
        elif isinstance(value, (int, str)) and not isinstance(value, bool):
            yield key, value

    for key, value in values(settings):
        if "implementation" in key and value not in LOCAL_KERNELS:
            raise ExportError(
                f"config.json: {key} is {value!r}, which may come from a hub; remove it, or choose from "
                f"{', '.join(LOCAL_KERNELS)}"
            )
        if isinstance(value, str):
            continue
        if key == "num_labels":
            check_labels(key, value)
        if any(word in key for word in LAYERS) and value > max(tensors, 4096):
            raise ExportError(f"config.json: {key} is {value:,}, but there are {tensors:,} tensors")
        if abs(value) >= 1 << 40 and "length" not in key:
            raise ExportError(f"config.json: {key} is {value:,}")


def _check_size(sketch: Any, stored: Shapes, folder: Path) -> None:
    """Raise ExportError if a model is larger than its weights, apart from computed tables."""
    parameters = sum(p.numel() for p in sketch.parameters())
    tables = sum(b.numel() for b in sketch.buffers())
    available = sum(torch.Size(shape).numel() for shape in stored.values())
    if parameters > available + EXTRA or tables > available + EXTRA:
        raise ExportError(
            f"{folder}: config.json asks for {parameters:,} parameters and tables of {tables:,} numbers; "
            f"the weights have {available:,}"
        )


def _check_loaded(model: Any, account: Any, task: str, folder: Path) -> None:
    """Raise ExportError if transformers initialised a weight that matters."""
    missing = sorted(account["missing_keys"])
    spec = TASKS[task]
    if spec.inputs != ("text",) or spec.outputs == ("last_hidden_state",) or spec.drawn == "spans":
        missing = [name for name in missing if "pooler." not in name]  # the task does not use it
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise ExportError(f"{folder}: {type(model).__name__} lacks the weights {', '.join(missing[:SHOWN])}{more}")
