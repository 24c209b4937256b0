"""Texts of rule files, right and wrong, that several tests share."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

GOOD = '''\
# a comment
[checkpoint]
name = "hybrid"
description = """
[[unused]]
two lines"""
detect = ["latent_dist.*", "vocab_module.*"]

[checkpoint.rename]
"grover." = "kermt."
"latent_dist." = ""

[target]
factory = "models/finetune.py:build"
kwargs = { checkpoint = "hybrid", sizes = [1, 2.5], nested = { on = true } }
inputs = [{ shape = [2, 3] }, { shape = [], dtype = "int64", low = -1, high = 9 }, 4, true, "mean"]
variants = "models.finetune:variants"
loss = "outputs.0.loss"

[ddp]
find_unused_parameters = true
source = ["train.py", "scripts/*.sh"]

[[unused]]
params = [
    "vocab_module.*",
]
reason = "pretraining heads"
action = "freeze"

[[unused]]
params = ["encoder.**.bias", "mask_token"]
reason = "only for masked batches"
action = "allow"
when = "sometimes"
optional = true
'''

HEAD = '[checkpoint]\nname = "x"\n[target]\nfactory = "a:b"\n'
ENTRY = '[[unused]]\nparams = ["a"]\nreason = "r"\naction = "allow"\n'
ALLOWED = "(allowed: params, reason, action, when, optional)"
REFERENCE = '"module:callable" or "path/file.py:callable"'


# A wrong text and what is said about it, after the path.
WRONG = [
    (
        "",
        "checkpoint: missing (expected a table [checkpoint]); target: missing (expected a table [target])",
    ),
    ('[checkpoint]\nname = "x"\n[target]\n', f"3: target.factory: missing (expected {REFERENCE})"),
    (
        '[target]\nfactory = "a:b"\n[checkpoint]\n',
        "3: checkpoint.name: missing (expected a name without whitespace, slash, comma or colon, and no dash in front)",
    ),
    (
        HEAD.replace('"x"', '"a b"'),
        '2: checkpoint.name: expected a name without whitespace, slash, comma or colon, and no dash in front, got "a b"',
    ),
    (
        HEAD.replace('"x"', "7"),
        "2: checkpoint.name: expected a name without whitespace, slash, comma or colon, and no dash "
        "in front, got the integer 7",
    ),
    (
        HEAD + "[ddpp]\n",
        '5: ddpp: unknown key, did you mean "ddp"? (allowed: checkpoint, target, ddp, unused)',
    ),
    (
        HEAD + "[ddp]\nfind_unused = true\nstatic_graph = 1\n",
        '6: ddp.find_unused: unknown key, did you mean "find_unused_parameters"? (allowed: '
        "find_unused_parameters, static_graph, source); line 7: ddp.static_graph: expected true or "
        "false, got the integer 1",
    ),
    (
        HEAD + "[ddp]\nsource = [3]\n",
        "6: ddp.source[0]: expected a file or glob inside the project, got the integer 3",
    ),
    (
        HEAD + '[ddp]\nsource = "/train.py"\n',
        '6: ddp.source: expected a file or glob inside the project, got "/train.py"',
    ),
    (HEAD + "[ddp]\nsource = []\n", "6: ddp.source: expected a list of files, got an empty list"),
    (HEAD + "[ddp]\nsource = 1\n", "6: ddp.source: expected a file or glob, or a list of them, got the integer 1"),
    (
        HEAD + ENTRY.replace("action", "acton"),
        f"5: unused[0].action: missing (expected freeze, strip or allow); line 8: "
        f"unused[0].acton: unknown key, "
        f'did you mean "action"? {ALLOWED}',
    ),
    (
        HEAD + ENTRY + ENTRY.replace('"allow"', '"freez"'),
        '12: unused[1].action: expected one of "freeze", "strip", "allow", got "freez", did you mean "freeze"?',
    ),
    (
        HEAD + ENTRY + 'when = "now"\n',
        '9: unused[0].when: expected one of "never", "sometimes", got "now"',
    ),
    (HEAD + ENTRY.replace('"r"', '" "'), '7: unused[0].reason: expected a reason in words, got " "'),
    (
        HEAD + ENTRY.replace('["a"]', '"a"'),
        '6: unused[0].params: expected a list of globs over qualified names, got the string "a" (write ["…"])',
    ),
    (
        HEAD + ENTRY.replace('["a"]', "[]"),
        "6: unused[0].params: expected a list of globs over qualified names, got an empty list",
    ),
    (
        HEAD + ENTRY.replace('["a"]', '["a", 3, "b.."]'),
        "6: unused[0].params[1]: expected a glob over qualified names, got the integer 3; line 6: "
        'unused[0].params[2]: bad glob "b..": it has an empty segment',
    ),
    (
        HEAD + "[unused]\nparams = []\n",
        "5: unused: expected a list of tables, got a table (write [[unused]])",
    ),
    (
        HEAD.replace('"x"', '"x"\ndetect = ["a b"]'),
        '3: checkpoint.detect[0]: bad glob "a b": it holds whitespace (a name with a space is matched by [ ])',
    ),
    (
        HEAD.replace('"x"', '"x"\nrename = { a = 1, "" = "b" }'),
        '3: checkpoint.rename."": expected a key prefix, got ""; line 3: checkpoint.rename.a: '
        "expected a key prefix, or false, "
        "got the integer 1",
    ),
    (
        HEAD.replace('"x"', '"x"\nrename = { "a." = true }'),
        "3: checkpoint.rename: 'a.' is renamed to true: write the prefix that it becomes, or false to leave it out",
    ),
    (HEAD.replace("a:b", "a"), f'4: target.factory: expected {REFERENCE}, got "a"'),
    (HEAD.replace("a:b", "a b:c"), f'4: target.factory: expected {REFERENCE}, got "a b:c"'),
    (HEAD.replace("a:b", "a.py:"), f'4: target.factory: expected {REFERENCE}, got "a.py:"'),
    (
        HEAD + 'loss = "a b"\n',
        f'5: target.loss: expected {REFERENCE}, or a dotted path into the output, got "a b"',
    ),
    (
        HEAD + 'step = "a:s"\nloss = "loss"\ninputs = []\n',
        "5: target.step: takes the place of inputs, variants and loss, but inputs and loss is given too",
    ),
    (
        HEAD + "inputs = 3\n",
        f"5: target.inputs: expected {REFERENCE}, a list of inputs or a table of inputs, got the integer 3",
    ),
    (
        HEAD + 'inputs = [{ shape = [-1], dtype = "float" }]\n',
        '5: target.inputs[0].dtype: expected one of "float32", "float64", "float16", '
        '"bfloat16", "complex64", '
        '"complex128", "bool", "uint8", "int8", "int16", "int32", "int64", got "float", did '
        'you mean "float64"?; '
        "line 5: target.inputs[0].shape[0]: expected a size of 0 or more, got the integer -1",
    ),
    (
        HEAD + 'inputs = [{ shape = [2], dtype = "uint8", high = 300 }]\n',
        "5: target.inputs[0].high: expected 0 <= low < high <= 256 for uint8, got low = 0 and high = 300",
    ),
    (
        HEAD + "inputs = { x = { shape = [2], low = 1 } }\n",
        "5: target.inputs.x.low: low is for integer dtypes, and this one is float32",
    ),
    (
        HEAD + "kwargs = { day = 1979-05-27 }\n",
        "5: target.kwargs.day: expected a string, number, boolean, list or table, got a date",
    ),
    (
        HEAD + f"kwargs = {{ deep = {'[' * 40}{']' * 40} }}\n",
        f"5: target.kwargs.deep{'[0]' * 32}: nested more than 32 deep",
    ),
]

MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["delete", "insert", "swap", "duplicate"]),
        st.integers(0, len(GOOD)),
        st.integers(0, 30),
        st.sampled_from(['"', "'", "[", "]", "{", "}", "=", ".", "\n", "#", "\\", "*", "true", "3", "\r", "é", "\0"]),
    ),
    min_size=1,
    max_size=4,
)


def mutated(text: str, mutations: list[tuple[str, int, int, str]]) -> str:
    for kind, at, length, sign in mutations:
        part = text[at : at + length]
        middle = {"delete": "", "insert": sign + part, "swap": part[::-1], "duplicate": part * 2}[kind]
        text = text[:at] + middle + text[at + length :]
    return text


SIGNS = (
    b'"',
    b"'",
    b"[",
    b"]",
    b"{",
    b"}",
    b"=",
    b".",
    b"\n",
    b"#",
    b"\\",
    b"*",
    b"true",
    b"-1",
    b"\r",
    b"\xc3",
    b"\0",
    b"[[unused]]",
)


def damaged(seed: int) -> bytes:
    """GOOD with one to four mutations, the same for the same seed: of bytes, so that it may be no UTF-8 either."""
    random = Random(seed)
    data = GOOD.encode()
    for _ in range(random.randint(1, 4)):
        at, length = random.randrange(len(data) + 1), random.choice((0, 1, 1, 2, 5, 20, 80))
        part = data[at : at + length]
        changed = random.choice(
            (b"", part[::-1], part * 2, random.choice(SIGNS) + part, random.choice(SIGNS), random.randbytes(2))
        )
        data = data[:at] + changed + data[at + length :]
    return data if random.random() < 0.95 else data[: random.randrange(len(data) + 1)]
