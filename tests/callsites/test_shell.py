"""The corpus of shell call sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplint.callsites import shell
from ddplint.callsites.model import Wrap
from ddplint.callsites.source import utf8_source


def wraps(text: str) -> list[Wrap]:
    return shell.wraps(utf8_source(Path("run.sh"), text.encode()))


FLAG = "--ddp_find_unused_parameters"

FOUND = [
    (f"python train.py {FLAG} True --bf16\n", "on", "False"),
    (f"python train.py {FLAG} true\n", "on", "false"),
    (f"python train.py {FLAG}=True\n", "on", "False"),
    (f"python train.py {FLAG}='True'\n", "on", "False"),
    (f'python train.py {FLAG} "True"\n', "on", "False"),
    (f"python train.py {FLAG} 1\n", "on", "0"),
    (f"python train.py {FLAG} TRUE\n", "on", "FALSE"),
    (f"python train.py {FLAG} Yes\n", "on", "No"),
    (f"python train.py {FLAG}\n", "on", " False"),
    (f"python train.py {FLAG} --bf16\n", "on", " False"),
    (f"python train.py {FLAG} | tee log\n", "on", " False"),
    (f"python train.py {FLAG}; echo done\n", "on", " False"),
    (f"torchrun train.py \\\n  --bf16 \\\n  {FLAG} \\\n  True\n", "on", "False"),
    (f"torchrun train.py \\\r\n  {FLAG} True \\\r\n  --bf16\r\n", "on", "False"),
    (f"python train.py {FLAG} False\n", "off", None),
    (f"python train.py {FLAG}=no\n", "off", None),
    (f'python train.py {FLAG} "$SEARCH"\n', "unknown", None),
    (f"python train.py {FLAG} ${{SEARCH:-True}}\n", "unknown", None),
    (f"python train.py {FLAG}=$(cat flag)\n", "unknown", None),
    ("python train.py --ddp-find-unused-parameters True\n", "on", "False"),
    (f'ARGS="--bf16 {FLAG} True --fp16"\n', "on", "False"),
    (f'bash -c "python train.py {FLAG} True"\n', "on", "False"),
    (f"ARGS=(\n  --bf16\n  {FLAG} True\n)\n", "on", "False"),
    (f"bash <<EOF\npython train.py {FLAG} True\nEOF\n", "on", "False"),
    (f"x=1 python train.py {FLAG} True # {FLAG} False\n", "on", "False"),
    ("python run.py --strategy ddp_find_unused_parameters_true\n", "on", "ddp_find_unused_parameters_false"),
    ("python run.py fit --trainer.strategy=ddp_find_unused_parameters_true\n", "on", "ddp_find_unused_parameters_false"),
    ("python run.py trainer.strategy=ddp_find_unused_parameters_false\n", "off", None),
    ("python run.py +trainer.strategy.find_unused_parameters=true\n", "on", "false"),
    ('python run.py "+trainer.strategy.find_unused_parameters=true"\n', "on", "false"),
    ("python run.py --trainer.strategy.init_args.find_unused_parameters false\n", "off", None),
    ("python run.py --trainer.strategy.init_args.find_unused_parameters\n", "unknown", None),
]


@pytest.mark.parametrize(("text", "state", "after"), FOUND)
def test_what_the_flag_is(text: str, state: str, after: str | None) -> None:
    (wrap,) = wraps(text)
    setting = wrap.find_unused_parameters
    assert setting.state == state
    assert (setting.edit.after if setting.edit else None) == after
    if setting.edit is not None:
        assert text[setting.edit.start : setting.edit.end] == setting.edit.before


@pytest.mark.parametrize(
    "text",
    [
        f"# python train.py {FLAG} True\n",
        f"python train.py  # {FLAG} True\n",
        f"  #{FLAG} True\n",
        f"echo {FLAG} True\n",
        f'echo "use {FLAG} True"\n',
        f"cat <<'EOF'\npython train.py {FLAG} True\nEOF\npython train.py\n",
        f"cat <<-EOF\n\tpython train.py {FLAG} True\n\tEOF\n",
        f"python train.py {FLAG}_not True\n",
        "python train.py --strategy ddp\n",
        f"python train.py <<EOF\n{FLAG} True\n",
    ],
)
def test_what_only_looks_like_an_option(text: str) -> None:
    assert wraps(text) == []


def test_a_sign_in_a_word_is_no_comment_and_quotes_hide_separators() -> None:
    words = [[word.value for word in command] for command in shell.commands("run a#b 'c; d' \"e | f\" $(g ; h); i & j\n")]
    assert words == [["run", "a#b", "c; d", "e | f", "$(g ; h)"], ["i"], ["j"]]


@pytest.mark.parametrize("text", ["run 'open", 'run "open\\', "run $(open", "run ${open", "run \\", "cat <<EOF\nopen"])
def test_what_is_left_open_ends_with_the_file(text: str) -> None:
    assert next(iter(shell.commands(text)))[0].value == text.split()[0]


def test_where_it_is() -> None:
    (wrap,) = wraps(f"é=1\npython train.py \\\n  {FLAG} True\n")
    assert (wrap.line, wrap.column, wrap.callee, wrap.form) == (3, 3, FLAG, "shell")
