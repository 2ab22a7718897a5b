"""Text from tokens: whole characters, stop strings that never show, special tokens, chat templates."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.zoo.words import TEMPLATE, TEXT
from tests.zoo.words import tokenizer as make_tokenizer

from ptegpu.errors import InvalidInput
from ptegpu.models.template import ChatTemplate
from ptegpu.models.tokenizer import Detokenizer, StopStrings, Tokenizer, _silent
from ptegpu.models.tokenizer_bounds import _growth, _texts

BYTE_LEVEL = make_tokenizer()


def byte_fallback() -> tokenizers.Tokenizer:
    """Return a tokenizer in the style of SentencePiece.

    It has ▁ for spaces, bytes for unknown characters, and no space before the first word.
    """
    vocabulary = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}}
    for token in ("▁", "H", "e", "l", "o", "▁w", "w", "or", "r", "d", "▁wor"):
        vocabulary[token] = len(vocabulary)
    merges = [("▁", "w"), ("o", "r"), ("▁w", "or")]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def saved(folder: Path, tokenizer: tokenizers.Tokenizer, **config: object) -> Tokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(folder / "tokenizer.json")


class Plain:
    """A tokenizer of the `tokenizers` library with the interface that `Detokenizer` needs."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer = tokenizer

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, byte_fallback()], ids=["byte-level", "byte-fallback"])
@pytest.mark.parametrize("text", [*TEXT, "Hello wor wörld 🦊🏽 e\u0301 \n\t  x", "日", " lead", "\ufffd!", "👩‍👩‍👧"])
def test_characters_come_whole_and_as_soon_as_they_can(tokenizer: tokenizers.Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text).ids
    detokenizer = Detokenizer(Plain(tokenizer))  # type: ignore[arg-type]
    shown = ""
    for k, token in enumerate(tokens):
        piece = detokenizer.push(token)
        assert "\ufffd" not in piece or "\ufffd" in text
        shown += piece
        decoded = tokenizer.decode(tokens[: k + 1])
        assert shown == decoded or decoded.endswith("\ufffd")
    assert text == tokenizer.decode(tokens) == shown + detokenizer.finish()


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_after_any_prompt(prompt: str, text: str) -> None:
    before, tokens = BYTE_LEVEL.encode(prompt).ids, BYTE_LEVEL.encode(text).ids
    detokenizer = Detokenizer(Plain(BYTE_LEVEL), before)  # type: ignore[arg-type]
    pieces = [detokenizer.push(t) for t in tokens] + [detokenizer.finish()]
    assert text == "".join(pieces)


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=40))
def test_any_tokens_give_what_decoding_them_together_gives(tokens: list[int]) -> None:
    detokenizer = Detokenizer(Plain(BYTE_LEVEL))  # type: ignore[arg-type]
    pieces = [detokenizer.push(t) for t in tokens] + [detokenizer.finish()]
    assert BYTE_LEVEL.decode(tokens, skip_special_tokens=True) == "".join(pieces)


def test_a_word_after_a_prompt_keeps_its_space() -> None:
    tokenizer = byte_fallback()
    prompt, word = tokenizer.encode("Hello").ids, tokenizer.token_to_id("▁wor")
    assert " wor" == Detokenizer(Plain(tokenizer), prompt).push(word)  # type: ignore[arg-type]
    assert "wor" == Detokenizer(Plain(tokenizer)).push(word)  # type: ignore[arg-type]


def test_the_stop_string_that_is_complete_first_ends_the_text() -> None:
    for pieces in (["xaba"], ["xab", "a"], ["x", "a", "b", "a"]):
        passing = StopStrings(["b", "aba"])
        assert "xa" == "".join(map(passing.push, pieces)) + passing.finish()


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.data())
def test_stop_strings_end_the_text_wherever_it_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    matches = [(k + len(s), k) for s in stops if (k := text.find(s)) >= 0]
    expected = text[: min(matches)[1]] if matches else text
    passing, shown = StopStrings(stops), ""
    for begin, end in zip([0, *cuts], [*cuts, len(text)]):
        shown += passing.push(text[begin:end])
        assert expected.startswith(shown)
    assert bool(matches) == passing.stopped
    assert expected == shown + passing.finish()


def test_text_that_cannot_begin_a_stop_string_passes_at_once() -> None:
    passing = StopStrings(["<end>", "\n\n"])
    assert ["Hello", "<ex", "\n!"] == [passing.push(text) for text in ("Hello<e", "x\n", "!")]
    assert not passing.stopped


def test_special_tokens(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "add_bos_token": True}
    tokenizer = saved(tmp_path, BYTE_LEVEL, **config)
    assert (0, 1) == (tokenizer.bos, tokenizer.eos)
    assert 0 == tokenizer.encode("fox")[0]
    assert [0] == tokenizer.encode("")
    assert "fox" == tokenizer.decode([*tokenizer.encode("fox"), 1])
    assert 0 != saved(tmp_path, BYTE_LEVEL, bos_token="<s>").encode("fox")[0]


def test_a_conversation_in_the_format_of_the_model(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    tokenizer = saved(tmp_path, BYTE_LEVEL, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE)
    expected = "<s><|system|>Be brief.</s><|user|>Hi</s><|assistant|>"
    assert expected == tokenizer.chat.render(messages)
    assert BYTE_LEVEL.encode(expected, add_special_tokens=False).ids == tokenizer.encode_chat(messages)
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}!"}]
    assert "Be brief.!" == saved(tmp_path, BYTE_LEVEL, chat_template=named).chat.render(messages)
    (tmp_path / "chat_template.jinja").write_text("from a file: {{ messages | length }}")
    assert "from a file: 2" == saved(tmp_path, BYTE_LEVEL, chat_template="no").chat.render(messages)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}", "assistant"),
        ("{{ messages[1] | tojson }}", '{"role": "assistant", "content": "ü"}'),
        ("{%- generation %}\n{{ messages[1].content }}{% endgeneration -%}\n", "ü"),
        ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
        ("  {% if tools is none %}\nnone\n  {% endif %}\n", "none\n"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ messages[0].content.strip().upper() }}", "HI"),
    ],
)
def test_what_templates_use(template: str, expected: str) -> None:
    messages = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "ü"}]
    assert expected == ChatTemplate(template, {}).render(messages)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.mro() }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe."),
        ("{{ messages[5].role }}", "list object has no element 5"),
    ],
)
def test_what_templates_may_not(template: str, expected: str) -> None:
    with pytest.raises(InvalidInput) as error:
        ChatTemplate(template, {}).render([{"role": "user", "content": "x"}])
    assert str(error.value).startswith(f"the chat template refuses this conversation: {expected}")


def test_a_template_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as error:
        ChatTemplate("{% if %}", {})
    assert str(error.value).startswith("the chat template is invalid: ")
    with pytest.raises(InvalidInput) as error:
        ChatTemplate({"a": 1}, {})
    assert "the chat template is neither a text nor a list of named texts" == str(error.value)
    tokenizer = saved(tmp_path, BYTE_LEVEL)
    with pytest.raises(InvalidInput) as error:
        tokenizer.encode_chat([])
    looked = f"no chat_template in {tmp_path / 'tokenizer_config.json'} and no chat_template.jinja next to it"
    assert f"this model cannot chat: there is {looked}; use generate to continue a text" == str(error.value)


@pytest.mark.parametrize(("content", "reason"), [("{", " is not JSON: "), ("[]", " does not hold a JSON object")])
def test_a_config_that_is_none(tmp_path: Path, content: str, reason: str) -> None:
    BYTE_LEVEL.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(InvalidInput) as error:
        Tokenizer(tmp_path / "tokenizer.json")
    assert str(error.value).startswith(f"{tmp_path / 'tokenizer_config.json'}{reason}")


DEEP = "[" * 100_000
SPLIT = {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
NO_LIST = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": []}
NO_LIST["special_tokens"] = {"x": {"id": "x", "ids": 5, "tokens": []}}
PAD = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
CUT = {"max_length": 2, "strategy": "LongestFirst", "stride": 2, "direction": "Right"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "is not a tokenizer: Precompiled"),
        ({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}}, "fails: index out of bounds"),
        ({"pre_tokenizer": SPLIT}, "is not a tokenizer: Oniguruma error"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 5}}, "is not a tokenizer: Unable to load"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}, "fails: WordLevel error: Missing"),
        ({"model": 5}, "is not a tokenizer: "),
        ({"post_processor": NO_LIST}, "is not a tokenizer: "),
    ],
)
def test_a_tokenizer_that_panics(
    changes: dict[str, Any], reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(BYTE_LEVEL.to_str()) | changes))
    with pytest.raises(InvalidInput) as error:
        Tokenizer(path)
    assert str(error.value).startswith(f"{path} {reason}") and str(error.value).isprintable()
    assert ("", "") == capfd.readouterr()


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize("pattern", [{"String": "l"}, {"Regex": "l"}])
def test_chained_replacements_are_bounded(tmp_path: Path, part: str, pattern: dict[str, str]) -> None:
    config = json.loads(make_tokenizer().to_str())
    step = {"type": "Replace", "pattern": pattern, "content": "llll"}
    config[part] = {"type": "Sequence", f"{part}s": [step, {"type": "Sequence", f"{part}s": [step] * 4}]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match=f"its {part} may make a text more than 64 times as long"):
        Tokenizer(path)


def replace_all(old: str, new: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def charsmap(longest: int) -> dict[str, Any]:
    """Return a step that writes `longest` characters for one. Its table has the size of a trie, the trie, and texts."""
    table = (4).to_bytes(4, "little") + bytes(4) + b"x\0" + "é".encode() * longest + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def spaced(character: str) -> dict[str, Any]:
    """Return a step that puts a character before each part."""
    return {"type": "Metaspace", "replacement": character, "prepend_scheme": "always", "split": False}


PATTERNS = [replace_all(pattern, " ", "Regex") for pattern in (r"\n", " {2,}", r"\s+", r"[^a]\|+", ".")]


def template(pieces: list[dict[str, Any]], ids: int = 1) -> dict[str, Any]:
    token = {"id": "<s>", "ids": [0] * ids, "tokens": ["<s>"] * ids}
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": {"<s>": token}}


SPECIAL_PIECE, TEXT_PIECE = (
    {kind: {"id": x, "type_id": 0}} for kind, x in [("SpecialToken", "<s>"), ("Sequence", "A")]
)
LONGER = "its normalizer may make a text more than 64 times as long"
LONGER_TEXT = LONGER.replace("normalizer", "decoder")
LONGER_WORDS = LONGER.replace("normalizer", "pre_tokenizer")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
CHINESE = {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": True, "lowercase": False}
CHINESE["strip_accents"] = None
EACH = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
DELIMITED = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "", "cleanup": True}


@pytest.mark.parametrize(
    ("part", "steps", "reason"),
    [
        ("normalizer", [replace_all("l", "É" * 30), {"type": "NFD"}, replace_all("E", "E" * 30)], LONGER),
        ("normalizer", [replace_all("l", "\ufdfa" * 30), {"type": "NFKC"}, replace_all("ص", "\ufdfa" * 30)], LONGER),
        ("normalizer", [replace_all("l", "L" * 30), {"type": "Lowercase"}, replace_all("l", "L" * 30)], LONGER),
        ("normalizer", [replace_all("l", "é" * 30), {"type": "ByteLevel"}, replace_all("Ã", "é" * 30)], LONGER),
        ("normalizer", [charsmap(18), charsmap(18)], LONGER),
        ("normalizer", [charsmap(65)], LONGER),
        ("normalizer", [{"type": "Prepend", "prepend": "x" * 60}, {"type": "Prepend", "prepend": "x" * 4}], LONGER),
        ("normalizer", [{"type": "Prepend", "prepend": "x" * 8}, replace_all("x", "y" * 8)], LONGER),
        ("normalizer", [replace_all(".", "\ufdfa", "Regex"), {"type": "NFKD"}] * 2, LONGER),  # 18 characters for one
        ("normalizer", [replace_all(".", "\u1f82", "Regex"), {"type": "NFD"}] * 4, LONGER),
        ("normalizer", [replace_all(".", "\u0958", "Regex"), {"type": "NFC"}] * 7, LONGER),
        ("normalizer", [replace_all(".", "\u0130", "Regex"), {"type": "Lowercase"}] * 7, LONGER),
        ("normalizer", [replace_all(".", "中", "Regex"), CHINESE] * 4, LONGER),
        ("normalizer", [CHINESE] * 4, LONGER),
        ("normalizer", [charsmap(4), {"type": "NFD"}, charsmap(9)], LONGER),
        ("pre_tokenizer", [part for c in "abcdefg" for part in (spaced(c), EACH)], LONGER_WORDS),
        ("normalizer", [replace_all("", "l")] * 7, LONGER),  # between all characters
        ("normalizer", [replace_all("(?=l)", "l", "Regex")] * 7, LONGER),
        ("normalizer", [replace_all("l*", "l", "Regex")] * 7, LONGER),
        ("normalizer", [{"type": "ByteLevel"}] * 4, LONGER),
        ("pre_tokenizer", [BYTES] * 4, LONGER_WORDS),
        ("decoder", [replace_all("", "l")] * 7, LONGER_TEXT),
        ("decoder", [{"type": "BPEDecoder", "suffix": ""}] * 7, LONGER_TEXT),
        ("decoder", [DELIMITED] * 7, LONGER_TEXT),
        ("normalizer", [{"type": "NFC"}] * 256, "its normalizer has 257 steps, more than 256"),  # and the sequence
        ("processor", [template([SPECIAL_PIECE] * 5000)], "its post_processor adds 5,000 tokens, more than 4,096"),
        ("processor", [template([SPECIAL_PIECE] * 5, 1000)], "its post_processor adds 5,000 tokens, more than 4,096"),
        ("processor", [template([TEXT_PIECE] * 2)], "its post_processor repeats a text"),
    ],
)
def test_other_ways_to_lengthen_a_text_are_bounded(
    tmp_path: Path, part: str, steps: list[dict[str, Any]], reason: str
) -> None:
    config = json.loads(make_tokenizer().to_str())
    config["post_processor" if part == "processor" else part] = {"type": "Sequence", f"{part.replace('_', '')}s": steps}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InvalidInput) as error:
        Tokenizer(path)
    assert f"{path} is refused: {reason}" == str(error.value)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ('{"pattern": {"String": "l"}, "content": "ll"}', "a step of its normalizer has no type"),
        ('{"type": "Replace", "type": "Strip", "content": "x"}', "it has the key 'type' twice in one object"),
    ],
)
def test_steps_that_could_be_read_in_two_ways_are_refused(tmp_path: Path, step: str, reason: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(make_tokenizer().to_str().replace('"normalizer":null', f'"normalizer":{step}'))
    assert step in path.read_text()
    with pytest.raises(InvalidInput) as error:
        Tokenizer(path)
    assert f"{path} is refused: {reason}" == str(error.value)


def test_what_tokenizers_in_use_do_is_taken(tmp_path: Path) -> None:
    config = json.loads(make_tokenizer().to_str())
    quotes = [replace_all("``", '"'), replace_all("''", '"')]
    config["normalizer"] = {
        "type": "Sequence",
        "normalizers": [*quotes, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
        + [{"type": "Prepend", "prepend": "▁"}, replace_all(" ", "▁"), replace_all("\n", "<0x0A>")]
        + PATTERNS,
    }
    config["post_processor"] = template([SPECIAL_PIECE, TEXT_PIECE, SPECIAL_PIECE])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config))
    ids = Tokenizer(path).encode("A fox")
    assert [0, 0] == [ids[0], ids[-1]]
    assert "é" * 18 in _texts(charsmap(18)["precompiled_charsmap"])
    assert 18 == _growth([charsmap(18), *PATTERNS])


def test_nothing_is_padded_or_cut(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    padding = PAD | {"strategy": {"Fixed": 10**9}}
    path.write_text(json.dumps(json.loads(BYTE_LEVEL.to_str()) | {"padding": padding, "truncation": CUT}))
    text = "a fox in the wood"
    assert BYTE_LEVEL.encode(text).ids == Tokenizer(path).encode(text)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (DEEP, "tokenizer_config.json is not JSON: it is nested too deeply"),
        ('{"bos_token": "\\ud800"}', "tokenizer.json has no such token: "),
        ('{"chat_template": 5}', "the chat template is neither a text nor a list of named texts"),
        (
            '{"chat_template": [{"name": [1], "template": "{{ 1/0 }}"}]}',
            "the chat template refuses this conversation: ",
        ),
        ('{"chat_template": "\\ud800"}', "tokenizer.json fails: "),
    ],
)
def test_a_config_of_another_kind(config: str, reason: str, tmp_path: Path) -> None:
    BYTE_LEVEL.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        Tokenizer(tmp_path / "tokenizer.json").encode_chat([{"role": "user", "content": "x"}])


def test_a_prompt_that_is_no_text(tmp_path: Path) -> None:
    """Servers pass the message on, so it does not name the folder."""
    with pytest.raises(InvalidInput, match=r"^tokenizer\.json fails: "):
        saved(tmp_path, BYTE_LEVEL).encode("a\udcff")


def test_what_others_write_on_stderr_still_comes(capfd: pytest.CaptureFixture[str]) -> None:
    with _silent():
        os.write(2, b"told by another thread")
    assert ("", "told by another thread") == capfd.readouterr()


@pytest.mark.parametrize("library", [BYTE_LEVEL, byte_fallback()], ids=["byte-level", "byte-fallback"])
@pytest.mark.parametrize("text", [*TEXT, "Hello wörld 🦊🏽 e\u0301"])
def test_the_bytes_of_tokens_are_those_of_the_text(library: tokenizers.Tokenizer, text: str, tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, library)
    tokens = tokenizer.encode(text)
    detokenizer = Detokenizer(tokenizer)
    texts = [detokenizer.push(token) for token in tokens]
    pieces = [tokenizer.bytes_of(token) for token in tokens]
    assert text.encode() == b"".join(t.encode() if raw is None else raw for t, raw in zip(texts, pieces))


def test_the_bytes_of_special_tokens_are_their_text(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, BYTE_LEVEL)
    assert [None, b" the"] == [tokenizer.bytes_of(tokenizer.id_of(name)) for name in ("</s>", "Ġthe")]  # type: ignore[arg-type]
