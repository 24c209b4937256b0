from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.frameworks.idiom import never, script, without_gradient

SWIN = Path(__file__).parent.parent / "cases" / "timm_swin_features.py"
STAND_IN = SWIN.read_text().split("import timm\n")[0]  # timm imports torchvision for image transforms alone

MODELS = f"""{STAND_IN}
import timm
from torch import nn


def vit():
    sizes = {{"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "in_chans": 1}}
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=3, **sizes)
    model.extra_head = nn.Linear(16, 2)
    return model


def features():
    return timm.create_model("resnet10t", pretrained=False, features_only=True, out_indices=(0, 1))
"""


def test_the_image_is_of_the_size_and_channels_that_the_model_was_built_for(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    if not _installed():
        pytest.skip("timm is not installed (pip install --no-deps timm)")
    source = script(tmp_path, MODELS)
    found = source.analysed("vit", rehearse=True)
    model = source.load().vit()
    model(torch.randn(2, 1, 32, 32)).sum().backward()
    assert never(found) == without_gradient(model) == {"extra_head.weight", "extra_head.bias"}
    assert found.adapter == "timm"
    assert found.notices[0] == "timm: the example input is an image of shape (2, 1, 32, 32)"
    assert found.rehearsal is not None
    assert found.rehearsal.outcomes["find_unused_parameters=False"] == "reduction_error"


def test_all_feature_maps_stand_in_for_a_loss(tmp_path: Path) -> None:
    if not _installed():
        pytest.skip("timm is not installed (pip install --no-deps timm)")
    source = script(tmp_path, MODELS)
    found = source.analysed("features")
    model: Any = source.load().features()
    sum(output.sum() for output in model(torch.randn(2, 3, 64, 64))).backward()
    assert never(found) == without_gradient(model)
    assert "no loss given: the sum of all 2 floating outputs stands in" in found.notices


def _installed() -> bool:
    import importlib.util

    return importlib.util.find_spec("timm") is not None
