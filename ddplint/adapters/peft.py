"""PEFT: adapters around a model. Names stay as ``named_parameters()`` gives them, ``base_model.`` and all.

An adapter that is not active, and what ``modules_to_save`` keeps of the original, are parameters like any other: whether
they require grad is PEFT's to say, whether they are used the trace's. Inputs and labels come from the model inside.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ddplint.adapters import transformers
from ddplint.adapters.base import Adapted, Given, is_a

NAME = "peft"
_PLACES = (("peft.peft_model", "PeftModel"), ("peft.mixed_model", "PeftMixedModel"))
_LAYER = ("peft.tuners.tuners_utils", "BaseTunerLayer")


def adapt(made: Any, given: Given) -> Adapted | None:
    """``made`` with PEFT's adapters in it, wrapped or injected; None if there are none. Raises DdplintError."""
    wrapped = is_a(made, *_PLACES)
    if not wrapped and not (isinstance(made, nn.Module) and any(is_a(module, _LAYER) for module in made.modules())):
        return None
    base = made.get_base_model() if wrapped else made
    if transformers.adapt(base, Given(True, True, True)) is None:
        return Adapted(NAME, made)
    return transformers.of_model(made, base, given, f"{NAME}, {transformers.NAME}")
