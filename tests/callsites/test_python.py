"""The corpus of Python call sites: every form that is a wrap, with its flag, and everything that only looks like one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddplint.callsites import known, python
from ddplint.callsites.model import Wrap
from ddplint.callsites.source import python_source
from ddplint.errors import DdplintError

HEAD = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


def wraps(text: str, path: Path = Path("/nowhere/train.py")) -> list[Wrap]:
    source = python_source(path, textwrap.dedent(text).encode())
    return sorted(python.wraps(source, python.Modules()), key=lambda wrap: (wrap.line, wrap.column))


def flags(text: str) -> list[str]:
    """Of each wrap: form, the flag's state, "fixable" if it can be turned off."""
    return [
        f"{wrap.form} {wrap.find_unused_parameters.state}{' fixable' if wrap.find_unused_parameters.edit else ''}"
        for wrap in wraps(text)
    ]


ON, OFF = "call on fixable", "call off"

# How the class is named.
CALLEES = [
    ("import torch", "torch.nn.parallel.DistributedDataParallel"),
    ("import torch.nn as nn", "nn.parallel.DistributedDataParallel"),
    ("import torch.nn.parallel", "torch.nn.parallel.DistributedDataParallel"),
    ("import torch.nn.parallel as P", "P.DistributedDataParallel"),
    ("import torch.nn.parallel.distributed as D", "D.DistributedDataParallel"),
    ("from torch import nn", "nn.parallel.DistributedDataParallel"),
    ("from torch.nn import parallel", "parallel.DistributedDataParallel"),
    ("from torch.nn.parallel import DistributedDataParallel", "DistributedDataParallel"),
    ("from torch.nn.parallel import DistributedDataParallel as DDP", "DDP"),
    ("from torch.nn.parallel.distributed import DistributedDataParallel as Wrapped", "Wrapped"),
    ("from torch.nn.parallel import *", "DistributedDataParallel"),
    ("import torch\nWrapper = torch.nn.parallel.DistributedDataParallel", "Wrapper"),
    ("import torch\nP = torch.nn.parallel", "P.DistributedDataParallel"),
    ("try:\n    from torch.nn.parallel import DistributedDataParallel as DDP\nexcept ImportError:\n    DDP = None", "DDP"),
    (
        "try:\n    from apex.parallel import DistributedDataParallel as DDP\n"
        "except ImportError:\n    from torch.nn.parallel import DistributedDataParallel as DDP",
        "DDP",
    ),
    ("import torch", "(torch.nn.DataParallel if one else torch.nn.parallel.DistributedDataParallel)"),
]


@pytest.mark.parametrize(("head", "name"), CALLEES, ids=[f"{name} {n}" for n, (_, name) in enumerate(CALLEES)])
def test_every_name_of_the_class_is_a_wrap(head: str, name: str) -> None:
    assert flags(f"{head}\nmodel = {name}(model, find_unused_parameters=True)\n") == [ON]
    assert flags(f"{head}\ndef main():\n    return {name}(model)\n") == [OFF]


# After HEAD: what the flag is.
VALUES = [
    ("DDP(m)", OFF),
    ("DDP(m, find_unused_parameters=True)", ON),
    ("DDP(m, find_unused_parameters=False)", OFF),
    ("DDP(m, find_unused_parameters=None)", OFF),
    ("DDP(m, find_unused_parameters=1)", "call on"),
    ("DDP(m, find_unused_parameters='False')", "call unknown"),
    ("DDP(\n    m,  # a comment\n    find_unused_parameters=(\n        True\n    ),\n)", ON),
    ("DDP(m, None, None, 0, True, True, None, 25, True)", ON),
    ("DDP(m, None, None, 0, True, True, None, True)", OFF),
    ("DDP(m, *rest)", "call unknown"),
    ("DDP(m, None, None, 0, True, True, None, 25, True, *rest)", ON),
    ("DDP(m, find_unused_parameters=True if args.search else False)", "call conditional"),
    ("DDP(m, find_unused_parameters=True if args.search else True)", "call on"),
    ("DDP(m, find_unused_parameters=not args.frozen)", "call conditional"),
    ("DDP(m, find_unused_parameters=not False)", "call on"),
    ("DDP(m, find_unused_parameters=a and b)", "call conditional"),
    ("DDP(m, find_unused_parameters=stage == 1)", "call conditional"),
    ("DDP(m, find_unused_parameters=bool(1))", "call on"),
    ("DDP(m, find_unused_parameters=cfg.get('find_unused_parameters', False))", "call unknown"),
    ("DDP(m, find_unused_parameters=args.find_unused)", "call unknown"),
    ("DDP(m, find_unused_parameters=cfg['ddp'])", "call unknown"),
    ("DDP(m, find_unused_parameters=elsewhere)", "call unknown"),
    ("SEARCH = True\nDDP(m, find_unused_parameters=SEARCH)", "call on"),
    ("SEARCH = False\ndef main():\n    DDP(m, find_unused_parameters=SEARCH)", OFF),
    ("SEARCH = False\nSEARCH = True\ndef main():\n    DDP(m, find_unused_parameters=SEARCH)", "call conditional"),
    ("SEARCH = False\nif args.x:\n    SEARCH = True\nDDP(m, find_unused_parameters=SEARCH)", "call conditional"),
    ("if a:\n    s = True\nelse:\n    s = False\nDDP(m, find_unused_parameters=s)", "call conditional"),
    ("if a:\n    s = True\n    DDP(m, find_unused_parameters=s)", "call on"),
    ("if a:\n    s = True\nelse:\n    s = False\n    DDP(m, find_unused_parameters=s)", OFF),
    ("s = False\nfor stage in stages:\n    DDP(m, find_unused_parameters=s)\n    s = True", "call conditional"),
    ("s = True\ndef f():\n    global s\n    s = False\nDDP(m, find_unused_parameters=s)", "call conditional"),
    ("def wrap(m, search=False):\n    return DDP(m, find_unused_parameters=search)", "call unknown"),
    ("for s in (True, False):\n    DDP(m, find_unused_parameters=s)", "call unknown"),
    ("a, s = 1, True\nDDP(m, find_unused_parameters=s)", "call on"),
    ("s = False\ns |= args.x\nDDP(m, find_unused_parameters=s)", "call unknown"),
    ("DDP(m, find_unused_parameters=(s := True))", "call on"),
    ("models = [DDP(m, find_unused_parameters=True) for m in models]", ON),
    ("wrap = lambda m: DDP(m, find_unused_parameters=True)", ON),
    ("class Run:\n    def setup(self):\n        self.m = DDP(self.m, find_unused_parameters=True)", ON),
    ("class Run:\n    model = DDP(m, find_unused_parameters=True)", ON),
    ("DDP(m, find_unused_parameters=True) if distributed else m", ON),
    # dictionaries
    ("DDP(m, **{'find_unused_parameters': True})", ON),
    ("DDP(m, **dict(find_unused_parameters=True))", ON),
    ("DDP(m, **{})", OFF),
    ("DDP(m, **options)", "call unknown"),
    ("def wrap(m, **kw):\n    return DDP(m, **kw)", "call unknown"),
    ("DDP(m, find_unused_parameters=False, **options)", OFF),
    ("def f(m):\n    kw = {'find_unused_parameters': True}\n    return DDP(m, **kw)", ON),
    (
        "def f(m):\n    kw = dict(find_unused_parameters=True)\n    a = DDP(m, **kw)\n    return DDP(a, **kw)",
        "call on|call on",
    ),
    ("kw = {'find_unused_parameters': True}\nDDP(m, **kw)", "call on"),
    ("kw = {'device_ids': [0]}\nDDP(m, **kw)", OFF),
    ("kw = {}\nkw['find_unused_parameters'] = True\nDDP(m, **kw)", "call on"),
    ("def f(m):\n    kw = {}\n    kw['find_unused_parameters'] = True\n    return DDP(m, **kw)", ON),
    ("kw = {}\nif a:\n    kw['find_unused_parameters'] = True\nDDP(m, **kw)", "call conditional"),
    ("kw = {}\nDDP(m, **kw)\nkw['find_unused_parameters'] = True", OFF),
    ("kw = {}\nkw['static_graph'] = args.x\nDDP(m, **kw)", OFF),
    ("kw = {}\nkw[name] = True\nDDP(m, **kw)", "call unknown"),
    ("kw = {}\nkw.update(find_unused_parameters=True)\nDDP(m, **kw)", "call on"),
    ("kw = {}\nkw.update(device_ids=[0])\nDDP(m, **kw)", OFF),
    ("kw = {}\nkw.update(options)\nDDP(m, **kw)", "call unknown"),
    ("kw = {}\nadjust(kw)\nDDP(m, **kw)", "call unknown"),
    ("kw = {}\nprint(kw, kw.get('x'))\nDDP(m, **kw)", OFF),
    ("kw = {'find_unused_parameters': True}\nkw.pop('find_unused_parameters')\nDDP(m, **kw)", "call unknown"),
    ("kw = {'find_unused_parameters': True}\ndel kw['find_unused_parameters']\nDDP(m, **kw)", "call unknown"),
    ("other = kw = {}\nother['find_unused_parameters'] = True\nDDP(m, **kw)", "call unknown"),
    ("base = {}\nkw = base\nbase['find_unused_parameters'] = True\nDDP(m, **kw)", "call unknown"),
    ("base = {'find_unused_parameters': True}\nDDP(m, **{**base, 'find_unused_parameters': False})", OFF),
    ("base = {'find_unused_parameters': True}\nDDP(m, **{'find_unused_parameters': False, **base})", "call on"),
    ("base = {'x': 1}\nDDP(m, **(base | {'find_unused_parameters': True}))", "call on"),
    ("DDP(m, **({'find_unused_parameters': True} if a else {}))", "call conditional"),
    # a name that is bound twice
    ("def f(m):\n    from torch.nn.parallel import DistributedDataParallel as DDP\n    return DDP(m)", OFF),
    # partial
    ("from functools import partial\nw = partial(DDP, find_unused_parameters=True)", "partial on fixable"),
    ("import functools as ft\nw = ft.partial(DDP, device_ids=[0])", "partial unknown"),
    ("from functools import partial\nw = partial(DDP, m, None, None, 0, True, True, None, 25, True)", "partial on fixable"),
    (
        "from functools import partial\nw = partial(DDP, find_unused_parameters=True)\n"
        "w(m)\nw(m, find_unused_parameters=False)",
        "partial on fixable|partial off",
    ),
    # subclasses
    ("class Mine(DDP):\n    pass\nMine(m, find_unused_parameters=True)", "subclass on fixable"),
    ("class Mine(DDP):\n    pass\nclass Other(Mine):\n    pass\nOther(m)", "subclass off"),
    (
        "class Mine(DDP):\n    def __init__(self, m):\n        super().__init__(m, find_unused_parameters=True)\nMine(m)",
        "subclass on",
    ),
    (
        "class Mine(DDP):\n    def __init__(self, m, **kw):\n        super().__init__(m, **kw)\n"
        "Mine(m)\nMine(m, find_unused_parameters=True)",
        "subclass off|subclass on fixable",
    ),
    (
        "class Mine(DDP):\n    def __init__(self, m, search=True):\n"
        "        super().__init__(m, find_unused_parameters=search)\n"
        "Mine(m)\nMine(m, False)\nMine(m, search=True)",
        "subclass on|subclass off|subclass on fixable",
    ),
    (
        "class Mine(DDP):\n    def __init__(self, m, cfg):\n        super().__init__(m, **cfg)\nMine(m, c)",
        "subclass unknown",
    ),
    ("class Mine(torch.nn.parallel.DistributedDataParallel): ...\nMine(m)", "subclass off"),
    ("from mmcv.parallel import MMDistributedDataParallel\nMMDistributedDataParallel(m.cuda())", "subclass off"),
    (
        "from mmengine.model import MMDistributedDataParallel as MM\nMM(m, find_unused_parameters=True)",
        "subclass on fixable",
    ),
    (
        "from lib import LazyDistributedDataParallel as L\nL(m)\nL(m, find_unused_parameters=True)",
        "subclass unknown|subclass on fixable",
    ),
    ("cfg = dict(type='MMDistributedDataParallel', find_unused_parameters=True)", "registry on fixable"),
    ("cfg = {'type': 'MMDistributedDataParallel', 'broadcast_buffers': False}", "registry off"),
    # accelerate
    (
        "from accelerate import Accelerator, DistributedDataParallelKwargs\n"
        "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])",
        "accelerate on fixable",
    ),
    ("from accelerate.utils import DistributedDataParallelKwargs as K\nK()", "accelerate off"),
    ("import accelerate\naccelerate.DistributedDataParallelKwargs(0, True, 25, True)", "accelerate on fixable"),
    # transformers
    (
        "from transformers import TrainingArguments\nTrainingArguments('out', ddp_find_unused_parameters=True)",
        "training-arguments on fixable",
    ),
    (
        "import transformers as t\nt.Seq2SeqTrainingArguments(output_dir='o', ddp_find_unused_parameters=False)",
        "training-arguments off",
    ),
    ("from transformers import TrainingArguments\nTrainingArguments('out')", "training-arguments conditional"),
    (
        "from transformers import TrainingArguments as T\nT('o', ddp_find_unused_parameters=False if ddp else None)",
        "training-arguments conditional",
    ),
    ("import trl\ntrl.SFTConfig(ddp_find_unused_parameters=True)", "training-arguments on fixable"),
    ("from mine import RunArguments\nRunArguments(ddp_find_unused_parameters=False)", "training-arguments off"),
    (
        "import transformers\nclass Args(transformers.TrainingArguments):\n"
        "    ddp_find_unused_parameters: bool = False\nArgs('o')",
        "training-arguments off",
    ),
    ("args.ddp_find_unused_parameters = True", "training-arguments on fixable"),
    # Lightning
    (
        "import lightning as L\nL.Trainer(strategy='ddp_find_unused_parameters_true')",
        "strategy-name on fixable",
    ),
    (
        'import pytorch_lightning as pl\npl.Trainer(strategy="ddp_find_unused_parameters_false")',
        "strategy-name off",
    ),
    (
        "from lightning.pytorch import Trainer\nTrainer(strategy='ddp_spawn_find_unused_parameters_true')",
        "strategy-name on fixable",
    ),
    (
        "from lightning.fabric import Fabric\nFabric('gpu', 'ddp_find_unused_parameters_true')\nFabric(strategy='ddp')",
        "strategy-name on fixable|strategy-name off",
    ),
    (
        "import lightning as L\nL.Trainer(strategy='ddp_find_unused_parameters_true' if n > 1 else 'auto')",
        "strategy-name conditional",
    ),
    (
        "import lightning as L\nL.Trainer(strategy='ddp_find_unused_parameters_true' if n > 1 else None)",
        "strategy-name on",
    ),
    (
        "import lightning as L\nname = 'ddp_find_unused_parameters_true'\nL.Trainer(**{'strategy': name})",
        "strategy-name on",
    ),
    (
        "import lightning as L\nL.Trainer(strategy=r'ddp_find_unused_parameters_true')",
        "strategy-name on",
    ),
    (
        "from lightning.pytorch.strategies import DDPStrategy\nDDPStrategy(find_unused_parameters=True)",
        "lightning on fixable",
    ),
    (
        "import pytorch_lightning as pl\npl.Trainer(strategy=pl.strategies.DDPStrategy(find_unused_parameters=False))",
        "lightning off",
    ),
    ("from pytorch_lightning.plugins import DDPPlugin\nDDPPlugin()", "lightning on"),
    (
        "from lightning.pytorch import strategies\nclass S(strategies.DDPStrategy): ...\nS(find_unused_parameters=True)",
        "subclass on fixable",
    ),
]


@pytest.mark.parametrize(("text", "wanted"), VALUES, ids=[text[:70] for text, _ in VALUES])
def test_what_the_flag_is(text: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_version", lambda package: "2.5.0")
    assert flags(f"{HEAD}{text}\n") == wanted.split("|")


NOTHING = [
    f"{HEAD}# model = DDP(model, find_unused_parameters=True)\n",
    f'{HEAD}"""model = DDP(model, find_unused_parameters=True)"""\n',
    f"{HEAD}text = 'DDP(model, find_unused_parameters=True)'\n",
    f"{HEAD}isinstance(model, DDP)\ndef f(m: DDP) -> DDP: ...\n",
    "class DDP(torch.nn.Module):\n    pass\nDDP(m, find_unused_parameters=True)\n",
    "class DistributedDataParallel:\n    pass\nDistributedDataParallel(m, find_unused_parameters=True)\n",
    "def DDP(m, find_unused_parameters): ...\nDDP(m, find_unused_parameters=True)\n",
    "import paddle\npaddle.DataParallel(m, find_unused_parameters=True)\n",
    "from paddle import DataParallel as DDP\nDDP(m, find_unused_parameters=True)\n",
    "import torch\ntorch.nn.DataParallel(m)\ntorch.nn.parallel.DataParallel(m)\n",
    "from apex.parallel import DistributedDataParallel as DDP\nDDP(m)\n",
    "from megatron.core.distributed import DistributedDataParallel\nDistributedDataParallel(m)\n",
    "import mindtorch as torch\ntorch.nn.parallel.DistributedDataParallel(m)\n",
    f"{HEAD}DDP = Other\nDDP(m, find_unused_parameters=True)\n",
    f"{HEAD}DDP = make()\ndef f():\n    DDP(m, find_unused_parameters=True)\n",
    f"{HEAD}def f(DDP):\n    return DDP(m, find_unused_parameters=True)\n",
    f"{HEAD}def f():\n    from apex.parallel import DistributedDataParallel as DDP\n    DDP(m)\n",
    f"{HEAD}for DDP in things:\n    DDP(m)\n",
    f"{HEAD}if one:\n    from other import DDP\n    DDP(m)\n",
    "DDP(m, find_unused_parameters=True)\n",
    "DistributedDataParallel(m, find_unused_parameters=True)\n",
    "find_unused_parameters = True\n",
    "train(ddp_find_unused_parameters=True)\n",
    "import lightning as L\nL.Trainer(strategy='auto')\nL.Trainer(strategy='fsdp')\nL.Trainer(strategy=args.strategy)\n",
    "Trainer(strategy='ddp_find_unused_parameters_true')\n",
    "class Trainer: ...\nTrainer(strategy='ddp_find_unused_parameters_true')\n",
    f"{HEAD}class Wrapped(torch.nn.Module):\n    model = DDP\nWrapped(m)\n",
    f"{HEAD}def f():\n    DDP: type = None\n    DDP(m)\n",
    "parser.add_argument('--ddp_find_unused_parameters', action='store_true')\n",
]


@pytest.mark.parametrize("text", NOTHING)
def test_what_only_looks_like_a_wrap(text: str) -> None:
    assert wraps(text) == []


def test_where_a_wrap_is_and_how_it_is_written() -> None:
    (wrap,) = wraps(f"{HEAD}é = 1; net = DDP(net,\n    find_unused_parameters=args . unused, static_graph=True)\n")
    assert (wrap.line, wrap.column, wrap.callee) == (3, 14, "DDP")
    assert wrap.text == "é = 1; net = DDP(net,"
    assert (wrap.find_unused_parameters.state, wrap.find_unused_parameters.expression) == ("unknown", "args . unused")
    assert (wrap.static_graph.state, wrap.static_graph.expression) == ("on", "True")


def test_the_static_graph_has_its_position_too() -> None:
    (wrap,) = wraps(f"{HEAD}DDP(m, None, None, 0, True, True, None, 25, False, False, False, True)\n")
    assert (wrap.find_unused_parameters.state, wrap.static_graph.state) == ("off", "on")


@pytest.mark.parametrize(("version", "state"), [("2.5.0", "off"), ("1.9.4", "on"), (None, "unknown")])
def test_what_lightning_does_without_the_flag_depends_on_its_version(
    version: str | None, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_version", lambda package: version)
    text = "import pytorch_lightning as pl\npl.Trainer(strategy='ddp')\npl.strategies.DDPStrategy()\n"
    found = [wrap.find_unused_parameters for wrap in wraps(text)]
    assert [setting.state for setting in found] == [state, state]
    assert all(setting.edit is None for setting in found)


@pytest.mark.parametrize(
    ("trainer", "after"),
    [
        ("pl.Trainer", "ddp_spawn_find_unused_parameters_false"),
        ("pl.Fabric", "ddp_spawn"),
    ],
)
def test_a_strategys_name_becomes_one_that_its_taker_knows(trainer: str, after: str) -> None:
    (wrap,) = wraps(f"import lightning as pl\n{trainer}(strategy='ddp_spawn_find_unused_parameters_true')\n")
    assert wrap.find_unused_parameters.edit is not None
    assert wrap.find_unused_parameters.edit.after == after


def test_names_are_followed_into_the_projects_own_modules(tmp_path: Path) -> None:
    package = tmp_path / "lib"
    package.mkdir()
    (package / "__init__.py").write_text("from .dist import Wrapper\n# DistributedDataParallel is there\n")
    (package / "dist.py").write_text(
        "from torch.nn.parallel import DistributedDataParallel as DDP\nclass Wrapper(DDP): ...\nclass Net: ...\n"
    )
    head = "from lib.dist import DDP, Net\nfrom lib import Wrapper\nimport lib.dist as d\n"
    text = f"{head}DDP(m)\nNet(m)\nWrapper(m)\nd.DDP(m)\n"
    found = wraps(text, tmp_path / "train.py")
    assert [(wrap.line, wrap.form) for wrap in found] == [(4, "call"), (6, "subclass"), (7, "call")]
    inside = wraps("from .dist import DDP\nDDP(m, find_unused_parameters=True)\n", package / "run.py")
    assert [wrap.find_unused_parameters.state for wrap in inside] == ["on"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("DDP(\n", "not Python: '(' was never closed"),
        ("DDP\0(m)\n", "not Python: source code"),
        ("(" * 300 + ")" * 300, "not Python"),
    ],
)
def test_what_is_not_python_is_one_line(text: str, says: str) -> None:
    with pytest.raises(DdplintError, match=says.replace("(", r"\(")) as raised:
        wraps(text)
    assert "\n" not in str(raised.value)
