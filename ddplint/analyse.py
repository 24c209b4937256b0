"""The whole way from a request to an analysis: target, trace, graph, usage. Runs where torch may be imported."""

from __future__ import annotations

import time

import torch

from ddplint.analysis import Analysis, TraceRecord
from ddplint.errors import DdplintError
from ddplint.graph import GradientGraph, gradient_graph
from ddplint.request import Request
from ddplint.target import Target, load
from ddplint.trace.environment import TraceDevice, without_gpu
from ddplint.trace.run import Path, build, trace, weight_bytes
from ddplint.trace.sites import Site
from ddplint.trace.values import NoValue
from ddplint.usage import answers, describe, settle, way

GIB = 1024**3


def analyse(request: Request) -> Analysis:
    """Trace ``request.target`` and say what becomes of each of its parameters. Raises DdplintError."""
    with without_gpu(rank=0, world_size=max(request.ranks, 1)):
        target = load(request.target)
        path, reason, seconds, graph = _traced(target, request)
        device: TraceDevice = "cpu" if reason else "meta"
        if request.device == "cpu":
            device = "cpu"
        used, differing = answers(path, graph)
        parameters = settle(describe(path.built), path, graph, used)
        notices = [path.notice] if path.notice else []
        if path.no_backward:
            notices.append(f"backward does not run on {device} ({path.no_backward}): autograd's graph answers alone")
        if not path.built.model.training:
            notices.append("the factory returned the model in eval mode: what only training does is not seen")
        return Analysis(
            target=target.name,
            torch_version=torch.__version__,
            parameters=parameters,
            trace=TraceRecord(
                device=device,
                device_reason=reason,
                paths=1,
                ranks=1,
                nodes=len(path.recording.ops),
                seconds=seconds,
                disagreements=differing,
            ),
            way=way(path, graph, request.explain) if request.explain is not None else (),
            notices=tuple(notices),
        )


def _traced(target: Target, request: Request) -> tuple[Path, str, float, GradientGraph]:
    """One path on the device that can carry it, why it is not meta, and the seconds of trace and graph."""
    make = target.inputs[0] if target.step is None else None
    reason = ""
    size: int | None = None
    if request.device != "cpu":
        try:
            built = build(target, "meta", request.documented)
            size = weight_bytes(built.model)
            start = time.perf_counter()
            path = trace(target, built, "meta", make)
            if path.received is None and request.device == "auto" and size <= request.cpu_limit:
                raise NoValue(f"backward does not run on meta tensors ({path.no_backward})", None)
            graph = gradient_graph(path.recording)
            return path, "", time.perf_counter() - start, graph
        except NoValue as no:
            reason = f"{no.need}{_at(no.site)}"
            if request.device == "meta":
                raise DdplintError(
                    reason, where="--device meta", fix="use --device auto or cpu: this run needs real values"
                ) from no
        except DdplintError as error:
            if request.device == "meta":
                raise
            reason = str(error)
        if size is not None and size > request.cpu_limit:
            raise DdplintError(
                f"{reason}, and the weights ({size / GIB:.1f} GiB) are over the limit for real tensors ({request.cpu_limit / GIB:.1f} GiB)",
                fix="use --device cpu to run it all the same",
            )
    else:
        reason = "--device cpu"
    built = build(target, "cpu", request.documented)
    start = time.perf_counter()
    path = trace(target, built, "cpu", make)
    graph = gradient_graph(path.recording)
    return path, reason, time.perf_counter() - start, graph


def _at(site: Site | None) -> str:
    if site is None:
        return ""
    location = site.location()
    return f" ({location.file.rsplit('/', 1)[-1]}:{location.line})"
