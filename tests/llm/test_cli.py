"""`generate`, `chat` and `evaluate` on the command line: streams, pipes, JSON, Ctrl-C, errors."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from ptegpu.cli import main
from ptegpu.cli.chat import HELP
from ptegpu.cli.generate import interruptible
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.handle import Stream

pytestmark = pytest.mark.torch
Run = Callable[..., tuple[object, str, str]]
ROOT = Path(__file__).resolve().parent.parent.parent
PROMPT = "Once upon a time"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command and returns its exit code, stdout and stderr."""

    def call(*arguments: object, stdin: str = "") -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        return (ended.value.code, *capsys.readouterr())

    return call


def test_a_pipe_gets_the_text_alone(folder: Path, model: LanguageModel) -> None:
    command = [sys.executable, "-c", "from ptegpu.cli import main; main()", "generate", str(folder / "tiny.pte"), "-"]
    options = ["--max-tokens", "30", "--temperature", "1", "--seed", "5"]
    done = subprocess.run(
        [*command, *options],
        input=f"{PROMPT}\n".encode(),
        capture_output=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8", "PATH": ""},
    )
    assert 0 == done.returncode, done.stderr
    expected = model.generate(PROMPT, max_tokens=30, temperature=1.0, seed=5)
    assert expected.text + "\n" == done.stdout.decode()
    stats = done.stderr.decode()
    assert "\x1b" not in stats
    assert (
        stats.startswith("prefill 9 tokens, ")
        and " · decode " in stats
        and stats.endswith(f" · {expected.finish_reason}\n")
    )


def test_generate_prints_json(run: Run, folder: Path, model: LanguageModel) -> None:
    code, out, err = run("generate", folder / "tiny.pte", PROMPT, "--max-tokens", 6, "--top-k", 3, "--json")
    result = json.loads(out)
    expected = model.generate(PROMPT, max_tokens=6)
    assert (0, "") == (code, err)
    assert (expected.text, expected.tokens, "length") == (result["text"], result["tokens"], result["finish_reason"])
    assert expected.prompt_tokens == result["prompt_tokens"] and 6 == len(result["logprobs"])
    assert {"prefill_tokens_per_s", "decode_tokens_per_s", "reused_tokens"} < set(result["timings"])
    assert {"index", "name", "type", "backend", "engine"} == set(result["adapter"])


def test_generate_verifies_proposals(run: Run, folder: Path, model: LanguageModel) -> None:
    text = model.generate(PROMPT, max_tokens=20).text
    arguments = ("generate", folder / "tiny.pte", PROMPT, "--max-tokens", 20)
    for options in (("--speculate", 3), ("--speculate", "auto"), ("--draft", folder / "tiny.pte")):
        code, out, err = run(*arguments, *options)
        assert (0, text + "\n") == (code, out) and re.search(r" · \d+ of \d+ proposed tokens? accepted · \w+\n$", err)
    code, out, _ = run(*arguments, "--speculate", 3, "--json")
    result = json.loads(out)
    assert text == result["text"]
    assert {"runs", "proposed", "accepted", "reason"} == set(result["speculation"])
    assert json.loads(run(*arguments, "--json")[1])["speculation"] is None
    refusal = 'error: invalid speculate %s: expected "off", "auto" or an int from 1 to 15\n'
    for command in (arguments, ("chat", folder / "tiny.pte"), ("serve", folder / "tiny.pte")):
        assert (1, "", refusal % "'often'") == run(*command, "--speculate", "often")
        assert (1, "", refusal % 16) == run(*command, "--speculate", 16)
        expected = "error: --draft has no effect with --speculate off: leave one of them out\n"
        assert (1, "", expected) == run(*command, "--speculate", "off", "--draft", folder / "tiny.pte")


def test_a_server_with_a_draft_has_one_model(run: Run, folder: Path) -> None:
    models = folder / "tiny.pte", folder / "every.pte"
    expected = "error: --draft is for one model: serve the others with another command\n"
    assert (1, "", expected) == run("serve", *models, "--draft", models[0])


def test_chat_verifies_proposals(run: Run, folder: Path) -> None:
    plain = run("chat", folder / "tiny.pte", "--temperature", 0, stdin="A fox\nA fox\n")
    assert plain == run("chat", folder / "tiny.pte", "--temperature", 0, "--speculate", 4, stdin="A fox\nA fox\n")


def test_generate_stops_before_a_string(run: Run, folder: Path, model: LanguageModel) -> None:
    text = model.generate(PROMPT, max_tokens=20).text
    stop = text[4:8]
    arguments = ("generate", folder / "tiny.pte", PROMPT, "--max-tokens", 20, "--no-stats")
    assert (0, text[: text.index(stop)] + "\n", "") == run(*arguments, "--stop", "nowhere", "--stop", stop)


def test_generate_can_ask_a_question(run: Run, folder: Path, model: LanguageModel) -> None:
    answer = model.chat("Be brief.").say("Hi", max_tokens=5).text
    arguments = ("generate", folder / "tiny.pte", "Hi", "--max-tokens", 5, "--no-stats")
    assert (0, answer + "\n", "") == run(*arguments, "--system", "Be brief.")
    answer = model.chat().say("Hi", max_tokens=5).text
    assert (0, answer + "\n", "") == run(*arguments, "--chat")


def test_errors_are_one_line(run: Run, folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.pte"
    bare.write_bytes((folder / "tiny.pte").read_bytes())
    looked = f"{tmp_path / 'bare.tokenizer.json'} and {tmp_path / 'tokenizer.json'}"
    expected = f"error: no tokenizer: looked for {looked}; pass one (--tokenizer, tokenizer=)\n"
    assert (1, "", expected) == run("generate", bare, PROMPT)
    assert (1, "", "error: the prompt is empty: give at least one token\n") == run("generate", folder / "tiny.pte", "")
    code, out, err = run("chat", bare, "--tokenizer", folder / "tiny.tokenizer.json", stdin="")
    assert (0, "", "") == (code, out, err)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tiny.tokenizer.json").read_bytes())
    code, out, err = run("chat", bare, stdin="Hi\n")
    assert (1, "") == (code, out) and err.startswith("error: this model cannot chat: there is no chat_template in ")


@pytest.mark.parametrize("command", ["generate", "chat", "serve"])
def test_a_missing_tokenizer_is_reported_before_anything_is_planned(
    command: str, run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders fail before they are exported. Other programs fail because they are not language models."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it is loaded")

    for name in (
        "ptegpu.models.text.sequential.open_program",
        "ptegpu.models.checkpoints._export",
        "ptegpu.serve.models.BatchEngine",
    ):
        monkeypatch.setattr(name, never)
    bare, checkpoint = tmp_path / "bare.pte", tmp_path / "checkpoint"
    bare.write_bytes((folder / "tiny.pte").read_bytes())
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    prompt = [PROMPT] if command == "generate" else []
    looked = f"{tmp_path / 'bare.tokenizer.json'} and {tmp_path / 'tokenizer.json'}"
    for path, where in ((bare, looked), (checkpoint, checkpoint / "tokenizer.json")):
        expected = f"error: no tokenizer: looked for {where}; pass one (--tokenizer, tokenizer=)\n"
        assert (1, "", expected) == run(command, path, *prompt)
    code, out, err = run(command, ROOT / "tests" / "data" / "mlp.pte", *prompt)
    assert (1, "") == (code, out) and "is not a language model: its forward takes 1 inputs" in err


@pytest.mark.parametrize(("pictures", "help"), [(None, HELP), (object(), f"/image FILE shows a picture, {HELP}")])
def test_chat_offers_pictures_where_the_model_sees(
    pictures: object, help: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MagicMock(pictures=pictures, **{"program.device.info.name": "GPU"})
    noted: list[str] = []
    monkeypatch.setattr("ptegpu.cli.chat.open_model", lambda *_: (model, 0.0))
    monkeypatch.setattr("ptegpu.cli.chat._note", noted.append)
    assert (0, "", "") == run("chat", "m.pte", stdin="/help\n")
    assert [f"m.pte on GPU · {help}", help] == noted


def test_chat_answers_line_by_line(run: Run, folder: Path, model: LanguageModel) -> None:
    options = {"max_tokens": 6, "temperature": 0.7, "top_p": 0.95, "seed": 2}
    conversation = model.chat(**options)  # type: ignore[arg-type]
    answers = [conversation.say(text).text for text in ("Hi", "And?")]
    conversation.reset()
    answers.append(conversation.say("Hi").text)
    lines = "Hi\n\nAnd?\n/reset\nHi\n/exit\nnever\n"
    code, out, err = run("chat", folder / "tiny.pte", "--max-tokens", 6, "--seed", 2, stdin=lines)
    assert (0, "".join(f"{a}\n" for a in answers), "") == (code, out, err)


def test_chat_goes_on_after_a_message_that_is_too_long(run: Run, folder: Path) -> None:
    lines = f"{'x ' * 200}\nHi\n"
    code, out, err = run("chat", folder / "tiny.pte", "--max-tokens", 3, "--seed", 2, stdin=lines)
    assert 0 == code and 1 == out.count("\n")
    assert err.endswith("tokens, the model's context holds 96; /reset starts over\n") and 1 == err.count("\n")


def test_the_first_interrupt_stops_the_sentence_the_second_all(model: LanguageModel) -> None:
    before = signal.getsignal(signal.SIGINT)
    stream = model.stream(PROMPT, max_tokens=50, stop_tokens=())
    with interruptible(stream):
        next(stream)
        signal.raise_signal(signal.SIGINT)
        list(stream)
        assert "cancelled" == stream.generation.finish_reason
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert before is signal.getsignal(signal.SIGINT)


def test_an_interrupted_generation_has_the_exit_code_of_shells(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Stream.__next__

    def interrupting(stream: Stream) -> str:
        piece = original(stream)
        signal.raise_signal(signal.SIGINT)
        return piece

    monkeypatch.setattr(Stream, "__next__", interrupting)
    code, out, err = run("generate", folder / "tiny.pte", PROMPT)
    assert 130 == code and out.endswith("\n") and err.endswith(" · cancelled\n")


def test_evaluate(run: Run, folder: Path, tmp_path: Path, model: LanguageModel) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The fox said: the wood was quiet, and the fox was happy. " * 3, "utf-8")
    code, out, err = run("evaluate", folder / "every.pte", text, "--window", 32, "--json")
    result = json.loads(out)
    tokens = model.tokenizer.encode(text.read_text("utf-8"))
    assert (0, "") == (code, err)
    assert (len(tokens), len(tokens) - 1, 32) == (result["tokens"], result["scored"], result["window"])
    code, out, err = run("evaluate", folder / "every.pte", text, "--window", 32)
    assert (0, "") == (code, err)
    assert out.startswith(f"perplexity {result['perplexity']:.5g} · {result['nats']:.4f} nats per token, ")
    assert [] == result["notes"]
    code, out, err = run("evaluate", folder / "tiny.pte", text, "--limit", 20, "--json")
    assert (20, 19) == (json.loads(out)["tokens"], json.loads(out)["scored"])


def test_evaluate_says_what_is_slow_and_what_it_cannot_do(
    run: Run, folder: Path, tmp_path: Path, model: LanguageModel
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The fox said: the wood was quiet.", "utf-8")
    context = model.signature.context
    notes = [
        f"--window 9999 is more than the model's context: windows have {context} tokens",
        "this model gives logits for the last token only, so each token takes a run of its own; "
        "one exported with --all-logits scores a window in one run",
    ]
    code, out, err = run("evaluate", folder / "tiny.pte", text, "--window", 9999, "--json")
    assert (0, "", notes, context) == (code, err, json.loads(out)["notes"], json.loads(out)["window"])
    code, out, err = run("evaluate", folder / "tiny.pte", text, "--window", 9999)
    assert (0, "".join(f"note: {note}\n" for note in notes)) == (code, err)
    code, out, err = run("evaluate", folder / "every.pte", text, "--window", 0)
    assert (1, "error: a window of 0 tokens with a stride of 1 does not work: 2 ≤ window, 1 ≤ stride < window\n") == (
        code,
        err,
    )


def test_evaluate_compares_with_a_checkpoint(
    run: Run, folder: Path, tmp_path: Path, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[object] = []

    class Halved:
        """A reference with twice the perplexity."""

        def __init__(self, *args: object, **kwargs: object) -> None:
            recorded.extend((args, kwargs))

        def score(self, prompt: list[int], first: int = 1) -> np.ndarray:
            return model.score(prompt, first) - np.log(2)

    monkeypatch.setattr("ptegpu.export.reference.Reference", Halved)
    text = tmp_path / "text.txt"
    text.write_text("The fox said: the wood was quiet, and the fox was happy.", "utf-8")
    arguments = ("evaluate", folder / "every.pte", text, "--window", 16, "--checkpoint", tmp_path, "--quantize", "4bit")
    code, out, _ = run(*arguments, "--json")
    result = json.loads(out)
    assert (0, -0.5) == (code, round(result["difference"], 5))
    assert result["scored"] == result["reference"]["scored"]
    assert [(tmp_path, 16), {"quantize": "4bit", "group": 32, "embedding": None}] == recorded
    code, out, _ = run(*arguments)
    assert (0, "difference -50.000%") == (code, out.splitlines()[2])


def test_evaluate_takes_text_only(run: Run, folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"\xff\xfe")
    code, out, err = run("evaluate", folder / "tiny.pte", text)
    assert (1, "") == (code, out) and err.startswith(f"error: {text} is not UTF-8: ")
    missing = tmp_path / "missing.txt"
    assert (1, "", f"error: {missing}: No such file or directory\n") == run("evaluate", folder / "tiny.pte", missing)
