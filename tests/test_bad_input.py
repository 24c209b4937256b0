"""Whatever is wrong with a rule file or a target, the real command says it in one line and exits 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddplint import cli, worker
from ddplint.analysis import Analysis
from ddplint.errors import DdplintError
from ddplint.request import Request
from ddplint.rules import load_rule_file
from tests.made import analysis, unused, used
from tests.rule_texts import damaged

DAMAGED = int(os.environ.get("DDPLINT_DAMAGED", "300"))  # rule files; 5000 for a thorough run

ROOT = Path(__file__).resolve().parent.parent

# A target in which nothing is wrong; each case below replaces one part.
PARTS = {
    "head": "import os, signal, sys, time\nimport torch\nfrom torch import nn\n",
    "forward": "        return self.layer(x)\n",
    "build": "def build():\n    return Net()\n",
    "inputs": "def inputs():\n    return (torch.randn(2, 4),), {}\n",
    "loss": "def loss(output):\n    return output.sum()\n",
}
MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
"""
RULES = """
[checkpoint]
name = "small"
[target]
factory = "target.py:build"
[[unused]]
params = ["spare.*"]
reason = "for later"
action = "allow"
"""


def source(**changed: str) -> str:
    parts = PARTS | changed
    return "\n".join((parts["head"], MODEL + parts["forward"], parts["build"], parts["inputs"], parts["loss"]))


def line_of(text: str, needle: str) -> int:
    (number,) = (i for i, line in enumerate(text.splitlines(), 1) if needle in line)
    return number


@dataclass(frozen=True)
class Bad:
    """A target or rule files, the command's arguments, and what the line has to say, in this order."""

    says: tuple[str, ...]
    target: str = field(default_factory=source)
    arguments: tuple[str, ...] = ("--target", "target.py")
    rules: Mapping[str, str] = field(default_factory=dict)
    at: str = ""  # the text of the line of the target that has to be named


def rules(says: tuple[str, ...], text: str, *arguments: str, **more: str) -> Bad:
    return Bad(says, arguments=arguments or ("--ckpt", "small"), rules={"small": text, **more})


RULE_FILES = {
    "no such type": rules(
        ('rules: no checkpoint type "smal"', 'did you mean "small"?', "(there are: large, small)"),
        RULES,
        *("--ckpt", "smal"),
        large=RULES.replace('"small"', '"large"'),
    ),
    "broken TOML": rules(("rules/small.toml:3: broken TOML",), '\n[checkpoint]\nname = "small\n'),
    "unknown key": rules(
        ("rules/small.toml:11: ddp.static: unknown key", 'did you mean "static_graph"?'),
        RULES + "[ddp]\nstatic = true\n",
    ),
    "wrong type": rules(
        ("rules/small.toml:7: unused[0].params: expected a list of globs", "got the string"),
        RULES.replace('["spare.*"]', '"spare.*"'),
    ),
    "bad glob": rules(("rules/small.toml:7: unused[0].params[0]: ",), RULES.replace("spare.*", "spare.[a")),
    "two files of one name": rules(("rules: small.toml and twin.toml both name the checkpoint type",), RULES, twin=RULES),
}

TARGETS = {
    "no such module": Bad(("no module named 'no_such_module'",), arguments=("--target", "no_such_module:build")),
    "no such file": Bad(("no such file: nowhere.py",), arguments=("--target", "nowhere.py")),
    "import fails": Bad(
        ("importing target.py raised ModuleNotFoundError", "no_such_package"),
        source(head=PARTS["head"] + "import no_such_package\n"),
        at="import no_such_package",
    ),
    "broken syntax": Bad(("SyntaxError",), source(build="def build(:\n    return Net()\n"), at="def build(:"),
    "no such factory": Bad(("target.py has no 'biuld'", "did you mean 'build'?"), arguments=("--target", "target.py:biuld")),
    "factory is not callable": Bad(("build is a int, not callable",), source(build="build = 3\n")),
    "factory raises": Bad(
        ("raised ValueError: no such size",),
        source(build="def build():\n    raise ValueError('no such size\\nfor this model')\n"),
        at="raise ValueError",
    ),
    "factory returns no module": Bad(
        ("the factory returned a dict", "torch.nn.Module"), source(build="def build():\n    return {}\n")
    ),
    "inputs are no pair": Bad(
        ("inputs() returned a Tensor", "(args, kwargs)"),
        source(inputs="def inputs():\n    return torch.randn(2, 4)\n"),
    ),
    "inputs of the wrong shape": Bad(
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x5 and 4x3)"),
        source(inputs="def inputs():\n    return (torch.randn(2, 5),), {}\n"),
        at="return self.layer(x)",
    ),
    "loss is no scalar": Bad(("loss", "has shape (2, 3)", "scalar"), source(loss="def loss(output):\n    return output\n")),
    "loss is no tensor": Bad(("loss", "is a float", "tensor"), source(loss="def loss(output):\n    return 1.5\n")),
    "loss has no grad": Bad(
        ("the loss has no gradient",), source(loss="def loss(output):\n    return output.detach().sum()\n")
    ),
    "no trainable parameter": Bad(
        ("no trainable parameter",), source(build="def build():\n    return Net().requires_grad_(False)\n")
    ),
    "forward hangs": Bad(
        ("target.py:build: no answer after 20 s at ", "(time.sleep(0.01))", "--timeout"),
        source(forward="        while True:\n            time.sleep(0.01)\n"),
        ("--target", "target.py", "--timeout", "20"),
        at="time.sleep(0.01)",
    ),
    "forward exits": Bad(
        ("the target left with SystemExit: bye at ",), source(forward="        sys.exit('bye')\n"), at="sys.exit"
    ),
    "forward exits at once": Bad(
        ("the target ended its process with exit code 3 at ",),
        source(forward="        os._exit(3)\n"),
        at="os._exit(3)",
    ),
    "forward dies by SIGSEGV": Bad(
        ("the target's process was ended by SIGSEGV at ",),
        source(forward="        import ctypes\n        ctypes.string_at(0)\n"),
        at="ctypes.string_at(0)",
    ),
    "forward is killed": Bad(
        ("the target's process was ended by SIGKILL", "memory"),
        source(forward="        os.kill(os.getpid(), signal.SIGKILL)\n"),
    ),
}

CASES = RULE_FILES | TARGETS


def run(bad: Bad, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "rules").mkdir()
    (folder / "target.py").write_text(bad.target)
    for name, text in bad.rules.items():
        (folder / "rules" / f"{name}.toml").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "ddplint", "check", *bad.arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Future[subprocess.CompletedProcess[str]]]]:
    """All commands, a few at a time: most of their time is the import of PyTorch."""
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        # Those that wait come first.
        names = sorted(CASES, key=lambda name: "--timeout" not in CASES[name].arguments)
        yield {name: pool.submit(run, CASES[name], tmp_path_factory.mktemp("bad")) for name in names}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_exit_2(name: str, done: Mapping[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    ended = done[name].result()
    bad = CASES[name]
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert re.search(".*".join(map(re.escape, bad.says)), line), line
    if bad.at:
        assert f"target.py:{line_of(bad.target, bad.at)}" in line
    assert "ddplint/" not in line
    assert "bug of ddplint" not in line


FOUND = analysis(used("encoder.0.weight"), used("encoder.0.bias"), unused("vocab_module.weight"), unused("a.b"))


def test_damaged_rule_files_are_refused_in_one_line_or_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``check`` and ``update`` on mutated files: exit 2, one line, nothing written; or the file is right after all."""

    def answer(request: Request, **_: object) -> Analysis:
        return FOUND

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main([*arguments])
        assert isinstance(left.value.code, int)
        return left.value.code, *capsys.readouterr()

    monkeypatch.setattr(worker, "run", answer)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rules" / "hybrid.toml"
    file.parent.mkdir()
    refused = 0
    for seed in range(DAMAGED):
        data = damaged(seed)
        file.write_bytes(data)
        try:
            load_rule_file(file, tmp_path)
            right = True
        except DdplintError:
            right = False
            refused += 1
        for command in ("check", "update"):
            code, out, err = run(command, "--rules", "rules", "--all")
            if right and code == 2:  # a file that it names for its wraps is not there
                assert err.startswith("error: rules/hybrid.toml: ddp.source: no such file"), (seed, err)
                assert (out, len(err.splitlines())) == ("", 1)
            elif right:
                assert code in ((0, 1) if command == "check" else (0,)), (seed, err)
                assert "error: " not in err
            else:
                assert (code, out, len(err.splitlines())) == (2, "", 1), (seed, err)
                assert err.startswith("error: rules/hybrid.toml")
                assert "bug of ddplint" not in err
            if not right or command == "check":
                assert file.read_bytes() == data, seed
            assert [path.name for path in file.parent.iterdir()] == ["hybrid.toml"]
        if right:
            assert run("update", "--rules", "rules", "--all", "--diff")[:2] == (0, ""), seed
    assert DAMAGED // 3 < refused < DAMAGED
