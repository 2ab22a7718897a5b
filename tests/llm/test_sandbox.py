"""Untrusted templates: real ones render as in Jinja2, and bombs end soon with an error of one line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ptegpu.errors import InvalidInput
from ptegpu.models import template
from ptegpu.models.template import ChatTemplate

TEMPLATES = Path(__file__).resolve().parent.parent.parent / "web" / "test" / "templates"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
LINES = {  # constructs from templates in use
    "phi": "{% for m in messages %}{{ '<|' ~ m['role'] ~ '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "thoughts": "{% set ns = namespace(last=messages|length - 1, many=true) %}{% for m in messages[::-1] %}"
    "{% set index = (messages|length - 1) - loop.index0 %}{% if ns.many and m.role == 'user' and m.content is string "
    "and not (m.content.startswith('<tool>') and m.content.endswith('</tool>')) %}{% set ns.many = false %}"
    "{% set ns.last = index %}{% endif %}{% endfor %}{% for m in messages %}{% set content = m.content %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.last %}{{ loop.index0 }}{% endif %}{{ content|trim }}{% if loop.previtem %}"
    "{{ loop.previtem.role }}{% endif %}{% endfor %}",
    "macros": "{% macro one(m, n=2) %}{% for k in range(n) %}{{ m.content[:3] }}{{ caller() }}{% endfor %}"
    "{% endmacro %}{% for m in messages if m.role != 'system' %}{% call one(m) %}{{ [m.role, 1.5, (1, 2)] }}"
    "{% endcall %}{% endfor %}",
    "filters": "{{ messages|map(attribute='role')|unique|join(', ') }}"
    "{{ messages|selectattr('role', 'in', ['user'])|list|length }}{{ messages[0]|dictsort }}"
    "{{ messages[0].items()|list }}{{ 'a\nb'|indent(2) }}{{ '%s-%05.1f'|format('x', 2) }}"
    "{{ 'x{:>4}{a}'.format(1, a=2) }}{{ 'ab'.replace('a', 'cc')|upper|title }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 8 }}"
    "{{ -3 * 2.5 }}{{ 'ab' * 3 }}{{ [1] + [2] }}{{ ', '.join(['a', 'b']) }}"
    "{{ 1 if messages else 2 }}{{ x|default('d') }}{{ messages }}",
    "blocks": "{% set text %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ text|length }}"
    "{% filter upper %}{{ text }}{% endfilter %}"
    "{% for x in [[1, [2]], [3]] recursive %}{{ x if x is integer else loop(x) }}"
    "{% endfor %}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% block last %}{{ messages[-1].content }}{% endblock %}",
}
LINES |= {path.stem: path.read_text("utf-8") for path in sorted(TEMPLATES.glob("*.jinja"))}


def plain(source: str, **variables: Any) -> str:
    """Return what Jinja2 itself renders."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", template._Generation]
    )
    environment.filters["tojson"] = template._to_json
    environment.globals |= {"raise_exception": template._raise, "strftime_now": template._now}
    return environment.from_string(source).render(**variables, **SPECIAL, tools=None, documents=None)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("turns", [1, 300])
def test_what_templates_in_use_give(name: str, turns: int) -> None:
    turn = [{"role": "user", "content": "Hi <fox>"}, {"role": "assistant", "content": "<think>x</think>\n\nYes."}]
    messages = [{"role": "system", "content": "Be brief."}, *turn * turns, turn[0]]
    expected = plain(LINES[name], messages=messages, add_generation_prompt=True)
    assert expected == ChatTemplate(LINES[name], SPECIAL).render(messages)
    assert len(expected) > turns


def test_a_long_conversation_has_a_larger_budget() -> None:
    messages = [{"role": "user", "content": "x" * 30_000_000}]
    assert messages[0]["content"] + "!" == ChatTemplate("{{ messages[0].content|trim + '!' }}", {}).render(messages)


def growing(step: str, first: str = "['x']", rounds: int = 64) -> str:
    """Return a template that applies a step to its own result again and again."""
    return f"{{% set ns = namespace(a={first}) %}}{{% for i in range({rounds}) %}}{step}{{% endfor %}}"


SPENT = "it takes too long or writes too much"
FORMAT = "a format with such a width is not allowed"
BOMBS = {
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}": SPENT,
    "{% for a in range(9999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}": SPENT,
    "{{ range(10**9) }}": "Range too big.",
    "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(40) }}": SPENT,
    "{% macro a(n) %}{{ a(n) }}{% endmacro %}{{ a(1) }}": "maximum recursion depth exceeded",
    "{% block a %}{{ self.a() }}{% endblock %}": "maximum recursion depth exceeded",
    "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}": "maximum recursion depth exceeded",
    "{% macro m() %}{% endmacro %}{% for i in range(9999) %}{{ m(*range(99999)) }}{% endfor %}": SPENT,
    growing("{% set ns.a = ns.a ~ ns.a %}", "'x'"): SPENT,
    growing("{% set ns.a = ns.a + ns.a %}", "'x'"): SPENT,
    growing("{% set x %}{{ ns.a }}{{ ns.a }}{% endset %}{% set ns.a = x %}", "'x'"): SPENT,
    growing("{% set ns.a = [ns.a, ns.a] %}") + "{{ ns.a }}": SPENT,
    growing("{% set ns.a = {'a': ns.a, 'b': ns.a} %}") + "{{ ns.a|tojson }}": SPENT,
    growing("{% set ns.a = ns.a * ns.a %}", "3"): "a number is too large",
    "{{ 'x' * 10**9 }}": SPENT,
    "{{ [0] * 10**9 }}": SPENT,
    "{{ 2 ** (10 ** 9) }}": "a number is too large",
    "{{ 'x'|center(10**9) }}": SPENT,
    "{{ 'x'.ljust(10**9) }}": SPENT,
    "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}": SPENT,
    "{{ ('x' * 1000000)|replace('', 'y' * 1000000) }}": SPENT,
    "{{ (['y' * 100000] * 100000)|join }}": SPENT,
    "{{ ('y' * 1000000).join('x' * 100) }}": SPENT,
    "{{ ('\n' * 100000)|indent('x' * 100000) }}": SPENT,
    "{{ '\t'.expandtabs(10**9) }}": "expandtabs is not allowed",
    "{{ [1]|batch(10**9, 0)|list }}": SPENT,
    "{{ ([[1]] * 1000)|sum(start=[]) }}": "sum adds numbers only",
    "{{ 1.5|round(10**8, 'ceil') }}": "invalid precision 100000000: round has at most 308 digits",
    "{{ '%1000000000d' % 1 }}": FORMAT,
    "{{ '%*d' % (10**9, 1) }}": FORMAT,
    "{{ '%.999999999f'|format(1) }}": FORMAT,
    "{{ ('%(a)s' * 100000) % {'a': 'x' * 1000000} }}": SPENT,
    "{{ '{:1000000000}'.format(1) }}": FORMAT,
    "{{ '{:{}}'.format(1, 10**9) }}": FORMAT,
    "{{ '{a:1000000000}'.format_map({'a': 1}) }}": FORMAT,
    "{{ ('{0}' * 100000).format('x' * 1000000) }}": SPENT,
    "{{ '{0.__class__.__mro__}'.format(1) }}": "access to attribute '__class__'",
    "{{ [1]|tojson(indent=10**9) }}": SPENT,
    "{{ [1]|tojson(indent=17) }}": "tojson indents by 16 at most",
    "{{ strftime_now('%Y' * 1000) }}": "the format of a date is too long",
    "{% set s = 'x' * 99999 %}{% for i in range(99999) %}{{ 'y' in s }}{% endfor %}": SPENT,
    "{% set s = 'x' * 99999 %}{% for i in range(99999) %}{{ s == s }}{% endfor %}": SPENT,
    "{% set s = 'x' * 99999 %}{% for i in range(99999) %}{% set t = s[1:] %}{% endfor %}": SPENT,
    "{{ 1 / 0 }}": "division by zero",
    "{{ 1 // 0 }}": "integer division or modulo by zero",
    "{{ 1 is divisibleby(0) }}": "integer modulo by zero",
    "{{ 10.0 ** 400 }}": "(34, 'Numerical result out of range')",
    "{% include '/etc/passwd' %}": "no loader for this environment specified",
    "{{ lipsum(n=1000) }}": "'lipsum' is undefined",
    "{{ cycler.__init__.__globals__.os.environ }}": "access to attribute '__init__'",
    "{{ raise_exception('\x1b[2J\nerror: ' * 10000) }}": r"\x1b[2J\nerror: ",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_ends_in_one_line(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "BUDGET", template.BUDGET // 16)  # the full budget takes a second
    with pytest.raises(InvalidInput) as error:
        ChatTemplate(bomb, {}).render([{"role": "user", "content": "hi"}])
    message = str(error.value)
    assert message.startswith(f"the chat template refuses this conversation: {BOMBS[bomb]}")
    assert message.isprintable() and len(message) <= 2000


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "maximum recursion depth exceeded"),
        ("{% for a in [1] %}" * 50 + "{% endfor %}" * 50, "too many statically nested blocks"),
        ("{{ 'x'|wordwrap(1) }}", "No filter named 'wordwrap'."),
        ("x" * (template.LONGEST + 1), "262,145 characters; the limit is 262,144"),
    ],
)
def test_a_template_that_cannot_be_made(source: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as error:
        ChatTemplate(source, {})
    assert str(error.value).startswith(f"the chat template is invalid: {reason}")


COLLIDING = "range(0, (2**61 - 1) * 99999, 2**61 - 1)"  # all have the hash 0
SLOW = [  # each takes minutes or gigabytes unless its cost is counted in advance
    "{{ ('a' * 1000000).rfind('ab' + 'a' * 500000) }}",
    "{{ ('a' * 1000000).rindex('ab' + 'a' * 500000) }}",
    "{{ ('a' * 1000000).rsplit('ab' + 'a' * 500000)|length }}",
    "{{ ('a' * 1000000).rpartition('ab' + 'a' * 500000)|length }}",
    "{{ ('a' * 1000000).find('a' * 500000 + 'b') }}",
    "{{ ('a' * 1000000).count('a' * 500000 + 'b') }}",
    "{{ ('a' * 1000000).split('a' * 500000 + 'b')|length }}",
    "{{ ('a' * 1000000).replace('a' * 500000 + 'b', '')|length }}",
    "{{ ('a' * 500000 + 'b') in ('a' * 1000000) }}",
    "{{ ('a' * 1000000).strip('b' * 1000000 + 'a')|length }}",
    "{{ ('a' * 1000000)|trim('b' * 1000000 + 'a')|length }}",
    "{{ (5)|round(-15000000) }}",
    "{{ 1.5|round(15000000, 'floor') }}",
    "{{ 10 ** (10 ** 8) }}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ range(10 ** 12)|list }}",
    "{{ '%0999999999d' % 1 }}",
    "{{ '%(a(b)c)999999999d' % {'a(b)c': 1} }}",
    "{{ (('%(a)999d' * 400000) % {'a': 1})|length }}",
    "{{ ('{0:999}' * 400000).format(1)|length }}",
    "{{ (('<!---->' * 500000)|safe).striptags() }}",
    "{{ ('\xfc' * 500000).encode('punycode')|length }}",
    "{{ ('\xfc' * 500000).encode('idna')|length }}",
    f"{{{{ {COLLIDING}|unique|list|length }}}}",
    f"{{{{ {COLLIDING}|map('int')|unique|list|length }}}}",
    f"{{{{ dict({COLLIDING}|batch(2))|length }}}}",
    f"{{{{ {{}}.fromkeys({COLLIDING})|length }}}}",
    f"{{{{ {COLLIDING}|groupby('real')|length }}}}",
    "{{ (('x' * 1000000)" + "|map(attribute='0')" * 100 + ")|list|length }}",
    "{{ ('x' * 500000)|map(attribute='" + "0." * 50000 + "0')|list|length }}",
    "{{ ('x' * 500000)|sort(attribute='" + "0." * 50000 + "0')|length }}",
    "{{ ('x' * 500000)|groupby('" + "0." * 50000 + "0')|length }}",
    "{{ [1]|slice(15000000)|list|length }}",
    "{{ ('x' * 1000000)|batch(1)|list|length }}",
    "{% set s = [1] * 1000000 %}{% for i in range(99999) %}{{ s.count(2) }}{% endfor %}",
    "{% for i in range(99999) %}" + "{% set a = i %}" * 4000 + "{% endfor %}",
    "{% macro m() %}" + "{% set a = 1 %}" * 4000 + "{% endmacro %}{% for i in range(99999) %}{{ m() }}{% endfor %}",
    "{% set s = 'x' * 900000 %}{% for i in range(99999) %}{% if loop.changed(s ~ '') %}{% endif %}{% endfor %}",
    "{{ ('9' * 1000000)|int }}{{ ('9' * 1000000)|float }}{{ ('f' * 1000000)|int(0, 16) }}",
    "{{ ('x y ' * 200000)|wordcount }}{{ ('x y ' * 200000)|title|length }}",
    "{{ ('x ' * 1000000)|truncate(1999990)|length }}",
    "{{ ('\xfc' * 1000000)|urlencode|length }}",
    "{{ ('<' * 1000000)|forceescape|length }}",
    "{{ strftime_now('%999999999Y' * 18) }}",
    "{{ ('x\n' * 500000)|indent(30)|length }}",
    "{{ ([[[[[1]]]]] * 100000)|tojson(indent=16)|length }}",
    "{{ dict(x=1)|dictsort }}{{ (['ab'] * 200000)|sort|length }}{{ (['ab'] * 200000)|unique|list|length }}",
    "{{ " + "not " * 20000 + "1 }}",
    "{{ x" + ".a" * 20000 + " }}",
    "{{ 1" + "|abs" * 20000 + " }}",
    "{{ " + "9" * 200000 + " }}",
    "{{ 0x" + "f" * 200000 + " * 2 }}",
    "{% if 0 %}" + "{% elif 0 %}" * 4000 + "{% endif %}",
]
RUN_ALL = """
import json, resource, sys, time
from ptegpu.errors import InvalidInput
from ptegpu.models.template import ChatTemplate

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # bytes
for bomb in json.load(sys.stdin):
    print(repr(bomb[:100]), flush=True)
    try:
        rendered = ChatTemplate(bomb, {}).render([{"role": "user", "content": "hi"}])
    except InvalidInput as e:
        rendered = str(e)
    print(f"  {time.process_time():.1f} s: {rendered[:100]}", flush=True)
"""


def test_no_operation_takes_long() -> None:
    """Run all in a child process with bounded memory; the time limit is many times what they need."""
    process = subprocess.run(
        [sys.executable, "-c", RUN_ALL], input=json.dumps(SLOW), capture_output=True, text=True, timeout=240
    )
    assert 0 == process.returncode, process.stdout[-500:] + process.stderr[-500:]
    assert 2 * len(SLOW) == len(process.stdout.splitlines())


def test_threads_have_budgets_of_their_own() -> None:
    shared = ChatTemplate("{% for i in range(messages[0].content|int) %}{{ i // i }}{% endfor %}", {})
    messages: list[str] = []

    def render() -> None:
        try:
            shared.render([{"role": "user", "content": "3"}])
        except InvalidInput as e:
            messages.append(str(e))

    threads = [threading.Thread(target=render) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["the chat template refuses this conversation: integer division or modulo by zero"] * 4 == messages


def test_the_version_that_keeps_a_template_inside() -> None:
    assert (3, 1, 6) <= tuple(map(int, jinja2.__version__.split(".")[:3]))
