"""Value reads: the calls that turn a tensor's value into Python, where control flow can fork."""

from __future__ import annotations

from dataclasses import dataclass

from ddplint.trace.sites import Site

# Tensor methods and functions whose result is a Python value made from the tensor's data.
READS = frozenset(
    {
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__complex__",
        "item",
        "tolist",
        "numpy",
        "__array__",
        "is_nonzero",
        "equal",
        "allclose",
        "_local_scalar_dense",
    }
)


class NoValue(BaseException):
    """On meta: the run needs something that meta tensors cannot give, a value or a kernel.

    Not an ``Exception``, so that a target's own ``except Exception`` does not take another path because of it.
    """

    def __init__(self, need: str, site: Site | None) -> None:
        self.need, self.site = need, site
        super().__init__(need)


@dataclass(frozen=True, slots=True)
class ValueRead:
    """One value read of a run: which kind, where, and what it gave."""

    kind: str
    site: Site | None
    value: object
