"""A Hugging Face folder of any model that is no decoder to a `.pte` that says what it is for.

The folder may be a stranger's: only safetensors, JSON and text files are read, none of its code is run, and a model
that is larger than its weights is refused before it is made. The tokenizer is written beside the program.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ExportError
from ..files import LARGEST, MODEL_OR_SENTENCE, check_checkpoint, check_inside, check_writable, read_object
from ..models.card import METHOD, Card
from ..models.kinds import DECODERS, LANGUAGE, SPEECH_TYPE, architecture, kind_of_folder
from ..models.tasks.specs import SENTENCES, TASKS, ZERO_SHOT, task_of
from ..progress import Progress, silent
from .backend import quiet, torch
from .causes import root_cause
from .checkpoint import Store
from .hf_facts import LOCAL, Processing, read_processing
from .hf_models import RATE, Bounds, kind_of, wrapped
from .hf_sentences import finish_of, is_sentence_model, transformer_folder
from .lowering import FORWARD, CannotTrace, Source
from .module import ModuleOptions, module_job
from .pipeline import Exported, Pipeline
from .quantize import NONE, check_quantization

READ = (".json", ".txt", ".model", ".safetensors")  # endings of files that anything here reads
EXTRA = 1 << 26  # elements that a model may have beyond those of its weights: tables that are computed
LAYERS = ("layer", "depth", "block", "stage")  # in the names of settings that count parts
LABELS = 1 << 16  # that a model without a head for them may still name
LOCAL_KERNELS = ("eager", "sdpa", "grouped_mm", "batched_mm")  # implementations that transformers has itself


@dataclass(frozen=True, slots=True)
class TaskSummary:
    card: Card
    parameters: int


def is_decoder(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a language model, which `export_llm` is for."""
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
    """Writes the program to `path`, and the tokenizer of a text model beside it.

    Without a `task`, `config.json` decides. With `check`, the program is compared with eager PyTorch first: if results
    differ by more than rounding, that is an error, and nothing is written. `quantize` is one of `QUANTIZATIONS`.
    """
    source, target = Path(folder), Path(path)
    check_writable(target)
    if task is not None and task not in TASKS:
        raise ExportError(f"task is {task!r}; choose from {', '.join(TASKS)}")
    if dtype not in ("float32", "float16"):
        raise ExportError(f"dtype is {dtype!r}; choose from float32, float16")
    check_quantization(quantize, delegate)
    options = ModuleOptions(quantize, delegate, {"force_fp16": True} if dtype == "float16" else {}, check)
    pipeline = Pipeline(progress)
    with pipeline.phase("Reading weights"):
        model, task, parameters = load_model(source, task)
        finish = finish_of(source) if TASKS[task].drawn == "embedding" else None
        given = bounds or Bounds()
        processing = read_processing(source, transformer_folder(source), model, task, given)
    made = _exported(pipeline, model, parameters, processing, given, finish, options)
    made = replace(made, notes=[*processing.notes, *made.notes])
    return pipeline.write(made, target, processing.tokenizer)


def _exported(
    pipeline: Pipeline,
    model: Any,
    parameters: int,
    processing: Processing,
    bounds: Bounds,
    finish: Any,
    options: ModuleOptions,
) -> Exported[TaskSummary]:
    """The program, with sizes that may change where the model allows it; the card says what it takes."""
    card, text, audio = processing.card, processing.card.text, processing.card.audio
    assert card.task is not None
    if text is not None:
        bounds = replace(bounds, length=text.length)
    if audio is not None:
        bounds = replace(bounds, seconds=audio.most / RATE)
    module, args, shapes = wrapped(model, card.task, bounds, size=processing.size, finish=finish)

    def made(source: Source, delegate: bool) -> Exported[TaskSummary]:
        constants = {METHOD: processing.card.json()}
        summary = TaskSummary(processing.card, parameters)
        return pipeline.make(module_job({FORWARD: source}, summary, replace(options, delegate=delegate), constants))

    wanted = [_largest(x, dims) for x, dims in zip(args, shapes)]
    refusal = ""
    delegate = options.delegate and audio is None  # of sounds, partitions would cut the length
    for partitions in (True, False) if delegate else (False,):
        try:
            found = made(Source(module, args, shapes), partitions)
        except CannotTrace as e:
            refusal = e.args[0]
            break
        if all(found.lowered.bounds[k] == shape for k, shape in enumerate(wanted)):
            return found
        refusal = f"the model fixes {' and '.join(map(str, found.lowered.bounds))}"
    processing.notes.append(f"the sizes of inputs are fixed: {refusal}")
    shapes_at_most = [(1, *shape[1:]) for shape in wanted]
    args = tuple(_repeated(x, shape) for x, shape in zip(args, shapes_at_most))
    if text is not None:
        text = replace(text, batch=1, fixed=True)
    image = card.image and replace(card.image, batch=1)
    if audio is not None:
        audio = replace(audio, least=audio.most)
    processing.card = replace(card, text=text, image=image, audio=audio)
    return made(Source(module, args), delegate)


def _largest(x: torch.Tensor, dims: dict[int, Any] | None) -> tuple[int, ...]:
    return tuple(dims[d].max if dims and d in dims else size for d, size in enumerate(x.shape))


def _repeated(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """An example of another shape."""
    return torch.nn.functional.pad(x.double()[:1], (0, shape[-1] - x.shape[-1]), value=1).to(x.dtype)


def load_model(folder: str | os.PathLike[str], task: str | None = None) -> tuple[Any, str, int]:
    """The model of a folder for its task, with its weights in float32, and how many parameters it has."""
    source = Path(folder)
    _check_files(source)
    found = _task(source, task)
    inner = transformer_folder(source)
    transformers = _transformers()
    settings = read_object(inner / "config.json", ExportError)
    name = architecture(settings) or settings.get("model_type", "?")
    stored = Store(inner).files
    _check_settings(settings, stored, name)
    with muted(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(inner, **LOCAL)
            auto = getattr(transformers, TASKS[found].auto)
            with torch.device("meta"):
                sketch = auto.from_config(config, trust_remote_code=False)
        except Exception as e:
            raise ExportError(f"{source}: {name} cannot be made for {found}: {_first_line(e)}") from e
        _check_size(sketch, stored, source)
        del sketch
        try:
            model, account = auto.from_pretrained(
                inner, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **LOCAL
            )
        except Exception as e:
            raise ExportError(f"{source}: the weights cannot be read: {_first_line(e)}") from e
    _check_loaded(model, account, found, source)
    return model, found, sum(p.numel() for p in model.parameters())


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
    """That nothing that will be read leads elsewhere, or is too large."""
    check_checkpoint(folder, ExportError, MODEL_OR_SENTENCE)
    for path in (p for place in {folder, transformer_folder(folder)} for p in place.iterdir()):
        if path.suffix in READ and path.is_file():
            check_inside(path, folder, ExportError)
            if path.suffix != ".safetensors" and path.stat().st_size > LARGEST:
                raise ExportError(f"{path} has more than {LARGEST:,} bytes")
    if (transformer_folder(folder) / "adapter_config.json").exists():
        raise ExportError(f"{folder} is an adapter of another model: merge it into that one first")


def _task(folder: Path, wanted: str | None) -> str:
    """What is asked for, or what the folder is for."""
    if wanted is not None:
        return wanted
    if is_sentence_model(folder):
        return SENTENCES
    transformers = _transformers()
    settings = read_object(folder / "config.json", ExportError)
    name, kind = architecture(settings), settings.get("model_type")
    made = getattr(transformers, name, None) if name else None
    known = isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)
    found: str | None = None
    if known and name.endswith("Model") and hasattr(made, "get_image_features") and hasattr(made, "get_text_features"):
        found = ZERO_SHOT
    elif known:
        found = task_of(name, kind_of(made))
    if found is None:
        hint = "; `ptegpu export llm` is for language models" if name.endswith(DECODERS) else ""
        hint = "; `ptegpu transcribe` is for speech" if kind == SPEECH_TYPE and not hint else hint
        raise ExportError(
            f"{folder}: {name or kind or 'config.json names no architecture, which'} is for no task that can be "
            f"exported{hint}. Tasks are {', '.join(TASKS)}; --task chooses one"
        )
    return found


def _check_settings(settings: dict[str, Any], stored: dict[str, tuple[Path, str, list[int]]], name: str) -> None:
    """Raise ExportError for a model that is quantized, or that takes much memory or the network to be sketched."""
    if "quantization_config" in settings:
        raise ExportError(f"{name} is quantized: export a folder with weights in float32, float16 or bfloat16")

    tensors = len(stored)
    largest = max((size for _, _, shape in stored.values() for size in shape), default=0)

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
            if isinstance(backbone, str) and not value.get("backbone_config"):  # transformers asks the hub what it is
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


def _check_size(sketch: Any, stored: dict[str, tuple[Path, str, list[int]]], folder: Path) -> None:
    """That a model is not larger than its weights, but for tables that are computed."""
    wanted = sum(p.numel() for p in sketch.parameters())
    tables = sum(b.numel() for b in sketch.buffers())
    there = sum(torch.Size(shape).numel() for _, _, shape in stored.values())
    if wanted > there + EXTRA or tables > there + EXTRA:
        raise ExportError(
            f"{folder}: config.json asks for {wanted:,} parameters and tables of {tables:,} numbers; "
            f"the weights have {there:,}"
        )


def _check_loaded(model: Any, account: Any, task: str, folder: Path) -> None:
    """That no weight that matters was made up."""
    missing = sorted(account["missing_keys"])
    spec = TASKS[task]
    if spec.inputs != ("text",) or spec.outputs == ("last_hidden_state",) or spec.drawn == "spans":
        missing = [name for name in missing if "pooler." not in name]  # nothing here reads it
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ExportError(f"{folder}: {type(model).__name__} misses the weights {', '.join(missing[:3])}{more}")


def _first_line(e: BaseException) -> str:
    return root_cause(e).splitlines()[0]
