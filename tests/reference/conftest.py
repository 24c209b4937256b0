"""What a real backward says about each parameter, for the tests of the reference model."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy
import pytest
import torch

from ddplint.reference.finetune import FinetuneModel, inputs, loss

Names = set[str]


def backward(model: FinetuneModel, arguments: tuple[tuple[Any, ...], dict[str, Any]], seed: int) -> Names:
    """The trainable parameters whose `.grad` is None after forward, loss and backward."""
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    model.zero_grad(set_to_none=True)
    args, kwargs = arguments
    loss(model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]
    return {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}


def usage(
    model: FinetuneModel,
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    seeds: Iterable[int] = range(4),
) -> tuple[Names, Names]:
    """(never used, sometimes used) over real backward runs, one a seed."""
    runs = [backward(model, inputs() if arguments is None else arguments, seed) for seed in seeds]
    never = set.intersection(*runs)
    return never, set.union(*runs) - never


@pytest.fixture(name="usage")
def usage_fixture() -> Callable[..., tuple[Names, Names]]:
    return usage
