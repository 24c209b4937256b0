"""DDP's error texts, as real runs of two ranks printed them, read back against a model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplint.analysis import Analysis, Location, Parameter, TraceRecord
from ddplint.decode import Decoded, Report, decode, indices
from ddplint.errors import DdplintError

# The lines that matter of two-rank gloo runs on torch 2.13 under torchrun. The model has a parameter `scale`
# of its own, then `frozen`, `used`, `dead` and `tied` (two Linear layers that share a weight); its forward
# calls `used` alone.
UNUSED = """\
[rank0]:     if torch.is_grad_enabled() and self.reducer._rebuild_buckets():
[rank0]:                                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[rank0]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss.
[rank0]: making sure all `forward` function outputs participate in calculating loss.
[rank0]: Parameter indices which did not receive grad for rank 0: 0 3 4 5
[rank0]:  In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to print out information about which particular parameters did not receive gradient on this rank as part of this error
[rank1]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.
[rank1]: Parameter indices which did not receive grad for rank 1: 0 3 4 5
[rank1]:  In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to print out
W1201 04:12:29.142000 11839 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 11846 closing signal SIGTERM
"""  # noqa: E501  (as printed)
NAMED = """\
[rank1]:[I1201 04:13:37.079918422 reducer.cpp:2189] [Rank 1] Parameter: tied.bias did not get gradient in backwards pass.
[rank1]: Parameters which did not receive grad for rank 1: tied.bias, dead.bias, tied.weight, .scale
[rank1]: Parameter indices which did not receive grad for rank 1: 0 3 4 5
"""
TWICE = """\
[rank0]: RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of a module parameter outside the `forward` function.
[rank0]: Parameter at index 3 with name dead.weight has been marked as ready twice. This means that multiple autograd engine  hooks have fired for this particular parameter during this iteration.
"""  # noqa: E501  (as printed)

PLACE = Location(file="/elsewhere/model.py", line=9)


def parameter(name: str, **facts: Any) -> Parameter:
    made: dict[str, Any] = {
        "name": name,
        "aliases": (),
        "module": name.rpartition(".")[0],
        "module_type": "Linear",
        "shape": (2, 2),
        "dtype": "float32",
        "numel": 4,
        "bytes": 16,
        "trainable": True,
        "usage": "always",
    }
    return Parameter(**{**made, **facts})


UNCALLED: dict[str, Any] = {
    "usage": "never",
    "cause": "uncalled",
    "location": PLACE,
    "why": "`dead` is never called",
}
MODEL = Analysis(
    target="model.py:build",
    torch_version="2.13.0",
    parameters=(
        parameter("scale", usage="never", cause="uncalled"),
        parameter("frozen.weight", trainable=False, usage=None),
        parameter("frozen.bias", trainable=False, usage=None),
        parameter("used.weight"),
        parameter("used.bias"),
        parameter("dead.weight", aliases=("tied.weight",), **UNCALLED),
        parameter("dead.bias", **UNCALLED),
        parameter("tied.bias", **UNCALLED),
    ),
    trace=TraceRecord(device="meta", device_reason="", paths=1, ranks=1, nodes=3, seconds=0.1),
)
DEAD = ["scale", "dead.weight", "dead.bias", "tied.bias"]


def test_the_error_without_names() -> None:
    assert indices(UNUSED) == (Report("unused", 0, (0, 3, 4, 5)), Report("unused", 1, (0, 3, 4, 5)))
    rows = decode(UNUSED, MODEL)
    assert [row.name for row in rows] == DEAD
    assert [row.index for row in rows] == [0, 3, 4, 5]
    assert {row.ranks for row in rows} == {(0, 1)}
    assert {row.note for row in rows} == {""}
    assert rows[1].parameter == MODEL.parameters[5]
    assert str(rows[1]) == ("index 3, ranks 0, 1: dead.weight; uncalled (/elsewhere/model.py:9); `dead` is never called")


def test_the_error_with_names_uses_last_names_and_no_order() -> None:
    [report] = indices(NAMED)
    assert report.indices == (0, 3, 4, 5)
    assert set(report.names) == {"tied.bias", "dead.bias", "tied.weight", "scale"}
    assert [(row.name, row.note) for row in decode(NAMED, MODEL)] == [(name, "") for name in DEAD]


def test_names_alone() -> None:
    head = "Parameters which did not receive grad for rank 1:"
    text = f"{head} module.tied.weight, _orig_mod.dead.bias,\n  scale\nend, of it"
    assert [(row.name, row.index, row.ranks) for row in decode(text, MODEL)] == [
        ("scale", 0, (1,)),
        ("dead.weight", 3, (1,)),
        ("dead.bias", 4, (1,)),
    ]


def test_a_logged_line_alone() -> None:
    assert indices(NAMED.splitlines()[0]) == (Report("unused", 1, names=("tied.bias",)),)


def test_marked_as_ready_twice() -> None:
    assert indices(TWICE) == (Report("ready-twice", 0, (3,), ("dead.weight",)),)
    [row] = decode(TWICE, MODEL)
    assert (row.kind, row.name, row.note) == ("ready-twice", "dead.weight", "")
    [row] = decode("Parameter at index 1 has been marked as ready twice.", MODEL)
    assert str(row) == "index 1: used.weight; marked as ready twice"


ELSE = "the run had another checkpoint type or froze other parameters"
HEAD = "Parameter indices which did not receive grad for rank 0: "
WRAPPED = """\
[rank3]: Parameter indices which did
[rank3]: not receive grad for rank 3: 0 3
[rank3]: 4
[rank3]: 5
[rank3]: 1 x
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{HEAD}0 3 4 5", (0, 3, 4, 5)),
        (f"in the loss\n{HEAD}0 3 4 5 In addition, you can", (0, 3, 4, 5)),
        (f"{HEAD}\n0 3\n4 5\n In addition, you", (0, 3, 4, 5)),
        (f"{HEAD}0 3 4 5".replace("for rank", "for\nrank"), (0, 3, 4, 5)),
        (f"{HEAD}0 3 4 5".replace("for rank ", "for rank\n"), (0, 3, 4, 5)),
        (f"2026-01-02 03:04:05 ERROR {HEAD}0 3\n4 5", (0, 3, 4, 5)),
        (rf"{HEAD}0 3\n In addition", (0, 3)),
        (f"{HEAD}0 3\n2026-01-02 next", (0, 3)),
        (f"{HEAD}0 3\n100 steps", (0, 3)),
        (f"{HEAD}0 3\n2\n", (0, 3)),
        (f"{HEAD}0 3\n04:05:06 next", (0, 3)),
        (f"\x1b[31m[rank0]: {HEAD}0 3\x1b[0m\n[rank1]: 4", (0, 3)),
        (f"0: {HEAD}0 3\n1: other\n0: 4 5", (0, 3, 4, 5)),
        (f"[default0]:[rank0]: {HEAD}0 3", (0, 3)),
        (f"[1,0]<stderr>: {HEAD}0 3", (0, 3)),
    ],
)
def test_logs_as_they_come(text: str, found: tuple[int, ...]) -> None:
    assert indices(text) == (Report("unused", 0, found),)


def test_a_wrapped_header_of_interleaved_ranks() -> None:
    one = WRAPPED.splitlines()
    two = [line.replace("3", "2", 1).replace("rank 3", "rank 2") for line in one]
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    assert indices(mixed) == (Report("unused", 3, (0, 3, 4, 5)), Report("unused", 2, (0, 3, 4, 5)))


def test_ranks_that_differ() -> None:
    head = "Parameter indices which did not receive grad for rank"
    rows = decode(f"{head} 1: 3 4\n{head} 0: 4 5\n{head} 1: 3 4", MODEL)
    assert [(row.index, row.ranks) for row in rows] == [(3, (1,)), (4, (0, 1)), (5, (0,))]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f"{HEAD}6",
            f"index 6, rank 0: beyond the model's 6 trainable parameters: {ELSE}",
        ),
        (
            f"{HEAD}1",
            f"index 1, rank 0: used.weight; used on every traced path: {ELSE}, or took a path that was not traced",
        ),
        (
            "Parameters which did not receive grad for rank 0: decoder.weight",
            f"rank 0: decoder.weight; no parameter of the model has this name: {ELSE}",
        ),
        (
            "Parameters which did not receive grad for rank 0: frozen.weight",
            f"rank 0: frozen.weight; frozen in this model: {ELSE}",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_said(text: str, line: str) -> None:
    [row] = decode(text, MODEL)
    assert str(row) == line


def test_names_and_indices_that_do_not_fit_each_other() -> None:
    text = f"Parameters which did not receive grad for rank 0: dead.bias\n{HEAD}5"
    assert [(row.index, row.name, row.note.partition(":")[0]) for row in decode(text, MODEL)] == [
        (4, "dead.bias", "its index is 4, which the error text does not list"),
        (5, "tied.bias", "the error text does not list this name"),
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no DDP error in the text"),
        ("Parameter indices", "no DDP error in the text"),
        (HEAD, "no DDP error in the text"),
        ("RuntimeError: CUDA out of memory", "no DDP error in the text"),
        (
            UNUSED.split("Parameter indices")[0],
            "the text has DDP's error, but not the line that lists the parameters",
        ),
        (
            TWICE.split("Parameter at")[0],
            "the text has DDP's error, but not the line that lists the parameters",
        ),
    ],
)
def test_a_text_without_the_error(text: str, what: str) -> None:
    with pytest.raises(DdplintError) as raised:
        decode(text, MODEL)
    assert str(raised.value).startswith(what)
    assert "\n" not in str(raised.value)


@settings(derandomize=True, deadline=None)
@given(st.sets(st.integers(0, 400), min_size=1), st.integers(20, 120))
def test_a_list_of_any_length_wrapped_anywhere_is_read_whole(found: set[int], width: int) -> None:
    words = f"{HEAD}{' '.join(map(str, sorted(found)))}".split(" ")
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f"{word} "
    for prefix in ("", "[rank0]: "):
        text = "\n".join(f"{prefix}{line.rstrip()}" for line in lines)
        assert indices(text) == (Report("unused", 0, tuple(sorted(found))),)


@settings(derandomize=True, deadline=None)
@given(st.text(st.sampled_from(list("Pp 0123:,\n[]rank.")), max_size=60), st.integers(0, 300))
def test_a_cut_and_spoilt_text_is_decoded_or_refused(junk: str, at: int) -> None:
    text = NAMED[:at] + junk + NAMED[at:]
    try:
        rows = decode(text, MODEL)
    except DdplintError as error:
        assert "\n" not in str(error)  # noqa: PT017  (either outcome is right)
    else:
        assert all(isinstance(row, Decoded) for row in rows)
        assert all("\n" not in str(row) for row in rows)
