"""Run the benchmarks, and write docs/benchmarks.md: ``python tests/benchmarks/table.py [--rounds N] [PYTEST OPTIONS]``.

Each round is a run of ``bench_ways.py`` under pytest-benchmark, whose JSON goes to ``.benchmarks/ddplint/``; with
``--rounds 0`` the page is made from what is there.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ddplint

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".benchmarks" / "ddplint"
PAGE = ROOT / "docs" / "benchmarks.md"

Run = dict[str, Any]
Take = Callable[[Run], float | None]

NAMES = {
    "reference": "reference (`hybrid`)",
    "bert_base": "BERT-base",
    "bert_large": "BERT-large",
    "llama_7b": "Llama-7B shape",
    "llama_70b": "Llama-70B shape",
    "wav2vec2_48": "wav2vec2, 48 layers",
}
WAYS = {
    "check": "`ddplint check`, nothing cached",
    "meta-forward": "a script: meta forward, walk autograd",
    "meta-backward": "a script: meta forward and backward",
    "real": "real forward and backward, `p.grad is None`",
    "ddp": "DDP, two processes, debug level INFO",
    "ddp-detail": "the same, debug level DETAIL",
    "export": "`torch.export` on meta",
}


def main(arguments: Sequence[str]) -> None:
    """Run the rounds, then write the page."""
    rounds, options = 3, list(arguments)
    if options[:1] == ["--rounds"]:
        rounds, options = int(options[1]), options[2:]
    if rounds:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for old in FOLDER.glob("*.json"):
            old.unlink()
    for number in range(rounds):
        file = FOLDER / f"round-{number}.json"
        bench = [sys.executable, "-m", "pytest", str(Path(__file__).with_name("bench_ways.py")), "-p", "no:cacheprovider"]
        subprocess.run([*bench, "-q", f"--benchmark-json={file}", *options], cwd=ROOT, check=True)
    files = [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]
    if not files:
        raise SystemExit(f"no round in {FOLDER}: run it with --rounds 3")
    runs = [benchmark["extra_info"] for file in files for benchmark in file["benchmarks"]]
    PAGE.write_text("\n".join(page(files, runs)) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} from {len(files)} rounds")  # noqa: T201


HEAD = """# How fast is it

`ddplint check` beside what one does without it, on the same models and inputs. Each number is the median of whole
processes, started afresh and by turns. `python tests/benchmarks/table.py` measures all of it and writes this page.
What counts are the ratios within it: the seconds are those of one machine.
"""
WHOLE = """
## Whole processes

Seconds from start to exit, and the most memory that the largest process of it had. "Without gradient" is what the way
found: how many trainable parameters get none. Only `check` also says why and where, looks at all paths, and asks DDP
itself, with each of its three settings. What is not in a table was not measured. DDP's error names the parameters with
TORCH_DISTRIBUTED_DEBUG=INFO as with DETAIL.
"""
GROWTH = """
## Growth

A chain of cheap operations on meta, one path: target, trace, graph and usage. Time and memory an operation, each with
its ratio to that of the shortest chain (aim: 1.3).
"""
AFTER = """
A rehearsal's time is divided by its iterations; what is left is one iteration of all three settings, each with its own
model, wrap and reducer.
"""


def page(files: Sequence[Run], runs: Sequence[Run]) -> Iterator[str]:
    """The lines of docs/benchmarks.md."""
    machine, cpu = files[-1]["machine_info"], files[-1]["machine_info"].get("cpu", {})
    installed = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "networkx"))
    versions = f"ddplint {ddplint.__version__}, {installed}"
    yield HEAD
    yield "| measured | |"
    yield "| --- | --- |"
    yield f"| date | {files[0]['datetime'][:10]} |"
    yield f"| machine | {cpu.get('brand_raw', machine['machine'])}, {cpu.get('count', '?')} cores |"
    yield f"| system | {machine['system']} {machine['release']}, Python {machine['python_version']} |"
    yield f"| versions | {versions} |"
    yield f"| rounds | {len(files)} |"
    yield f"| load of the machine | {_load(runs)} |"
    yield f"| limit of the stack | {_stack(runs)} |"
    yield WHOLE.rstrip()
    for model, name in NAMES.items():
        rows = [(way, found) for way in WAYS if (found := of(runs, model=model, way=way))]
        if rows:
            yield from ("", f"### {name}", "", "| | seconds | peak memory | without gradient | runs |")
            yield "| --- | ---: | ---: | ---: | ---: |"
            yield from (_row(way, found) for way, found in rows)
    yield from _ratios(runs)
    yield from _growth(runs)


def of(runs: Sequence[Run], **facts: Any) -> list[Run]:
    """The runs of which ``facts`` are true."""
    return [run for run in runs if all(run.get(key) == value for key, value in facts.items())]


def median(runs: Sequence[Run], take: Take) -> float | None:
    """The median of what ``take`` gets from each run that did not fail; None if all did."""
    numbers = [n for run in runs if "fails" not in run["out"] and (n := take(run)) is not None]
    return statistics.median(numbers) if numbers else None


def _row(way: str, found: Sequence[Run]) -> str:
    seconds, peak = median(found, lambda run: run["seconds"]), median(found, lambda run: run["peak"])
    if seconds is None or peak is None:
        said = found[0]["out"]["fails"].replace("|", "/").split(". ")[0]
        return f"| {WAYS[way]} | fails: {said[:110]} | | | {len(found)} |"
    unused = _unused(found[0]["out"])
    return f"| {WAYS[way]} | {seconds:.1f} | {peak / 2**20:,.0f} MiB | {unused} | {len(found)} |"


def _unused(out: Run) -> str:
    if "counts" in out:
        counts = out["counts"]
        return f"{counts['never']}" + (f", and {counts['sometimes']} sometimes" if counts["sometimes"] else "")
    return str(out.get("unused", "?"))


def _ratios(runs: Sequence[Run]) -> Iterator[str]:
    """The ratios that are aimed at, with both their numbers."""

    def row(text: str, model: str, way: str, own: Take, other: Take, aim: str, unit: str = "s") -> str:
        a, b = median(of(runs, model=model, way="check"), own), median(of(runs, model=model, way=way), other)
        if a is None or b is None:
            return f"| {NAMES[model]}: {text} | not measured | | | {aim} |"
        ratio = f"{b / a:.1f}" if aim.startswith("at least") else f"{a / b:.2f}"
        shown = [f"{n:.2f} s" if unit == "s" else f"{n / 2**20:,.0f} MiB" for n in (a, b)]
        return f"| {NAMES[model]}: {text} | {shown[0]} | {shown[1]} | {ratio} | {aim} |"

    yield from ("", "## Ratios", "", "| ddplint : beside it | ddplint | beside it | ratio | aim |")
    yield "| --- | ---: | ---: | ---: | ---: |"
    yield row("cold check : script with one meta forward", "bert_base", "meta-forward", whole, whole, "at most 1.25")
    yield row("trace, graph, usage : one meta forward", "llama_70b", "meta-forward", trace, parts("forward"), "at most 1.5")
    both = parts("forward", "backward")
    text = "rehearsal, an iteration : meta forward and backward"
    yield row(text, "llama_70b", "meta-backward", _iteration, both, "at most 4")
    yield row("peak memory : that script's", "llama_70b", "meta-backward", peak, peak, "at most 1.3", "MiB")
    text = "trace, graph, usage : real forward and backward"
    yield row(text, "bert_large", "real", trace, both, "at least 20 times faster")
    yield row("peak memory : real", "bert_large", "real", peak, peak, "at least 5 times smaller", "MiB")
    yield AFTER.rstrip()


def whole(run: Run) -> float:
    """Seconds from start to exit."""
    return float(run["seconds"])


def peak(run: Run) -> float:
    """Bytes."""
    return float(run["peak"])


def trace(run: Run) -> float:
    """``trace.seconds`` of a check."""
    return float(run["out"]["trace"]["seconds"])


def printed(key: str) -> Take:
    """What a script printed under ``key``."""
    return lambda run: float(run["out"][key])


def parts(*names: str) -> Take:
    """The seconds of these parts of a script, together."""
    return lambda run: sum(run["out"]["seconds"][name] for name in names)


def _iteration(run: Run) -> float | None:
    """Seconds that one iteration of each setting took, the building of their models and their wraps in it."""
    rehearsal = run["out"]["rehearsal"]
    seconds: float | None = rehearsal["seconds"] / rehearsal["iterations"] if rehearsal else None
    return seconds


def _growth(runs: Sequence[Run]) -> Iterator[str]:
    """Time and memory an operation, by length of chain."""
    yield GROWTH
    yield "| operations | parameters | µs each | ratio | bytes each | ratio | runs |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    for kind, text in (("one", "one"), ("many", "one each")):
        base: tuple[float, float] | None = None
        for nodes in sorted({run["nodes"] for run in of(runs, kind=kind)}):
            found = of(runs, kind=kind, nodes=nodes)
            seconds, held = (median(found, printed(key)) for key in ("seconds", "bytes"))
            if seconds is None or held is None:
                yield f"| {nodes:,} | {text} | {found[0]['out']['fails']} | | | | {len(found)} |"
                continue
            here = seconds / nodes, held / nodes
            base = base or here
            time, memory = here[0] / base[0], here[1] / base[1]
            yield f"| {nodes:,} | {text} | {here[0] * 1e6:.0f} | {time:.2f} | {here[1]:,.0f} | {memory:.2f} | {len(found)} |"


def _load(runs: Sequence[Run]) -> str:
    """How many processes wanted its cores before each run."""
    loads = sorted(run["load"] for run in runs)
    return f"{statistics.median(loads):.1f} (from {loads[0]:.1f} to {loads[-1]:.1f}; what is measured is about 1 of it)"


def _stack(runs: Sequence[Run]) -> str:
    limits = {run["stack"] for run in runs}
    return ", ".join("none" if limit < 0 else f"{limit / 2**20:.0f} MiB" for limit in sorted(limits))


if __name__ == "__main__":
    main(sys.argv[1:])
