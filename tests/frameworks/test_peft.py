from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.frameworks.idiom import never, script, without_gradient

pytest.importorskip("peft")
pytest.importorskip("transformers")

LORA = """
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification


def build():
    base = BertForSequenceClassification(
        BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
    )
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
    model = get_peft_model(base, lora)
    model.add_adapter("reference", lora)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.requires_grad_(True)
    return model


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(self.first(x))


def plain():
    return get_peft_model(Plain(), LoraConfig(r=2, target_modules=["first", "third"]))


def inputs():
    return (torch.ones(2, 4),), {}
"""


def test_an_adapter_that_is_not_active_is_unused_under_its_own_name(tmp_path: Path) -> None:
    source = script(tmp_path, LORA.replace("def inputs", "def plain_inputs"))
    found = source.analysed("build", rehearse=True)
    model = source.load().build()
    model(input_ids=torch.randint(1, 40, (2, 8)), labels=torch.tensor([0, 1])).loss.backward()
    expected = without_gradient(model)
    assert never(found) == expected
    layer = "base_model.model.bert.encoder.layer.0.attention.self.query"
    assert f"{layer}.lora_A.reference.weight" in expected
    assert f"{layer}.lora_A.default.weight" not in expected
    assert found.adapter == "peft, transformers"
    assert found.rehearsal is not None
    assert found.rehearsal.outcomes["find_unused_parameters=False"] == "reduction_error"


def test_what_modules_to_save_keeps_of_the_original_is_frozen(tmp_path: Path) -> None:
    found = script(tmp_path, LORA.replace("def inputs", "def plain_inputs")).analysed("build")
    trainable = {p.name: p.trainable for p in found.parameters if "classifier" in p.name}
    assert trainable["base_model.model.classifier.original_module.weight"] is False
    assert trainable["base_model.model.classifier.modules_to_save.default.weight"] is True


def test_adapters_on_a_plain_module_need_inputs(tmp_path: Path) -> None:
    source = script(tmp_path, LORA)
    found = source.analysed("plain")
    model = source.load().plain()
    model(torch.ones(2, 4)).sum().backward()
    assert never(found) == without_gradient(model) == {f"base_model.model.third.lora_{part}.default.weight" for part in "AB"}
    assert found.adapter == "peft"
    assert "no example inputs" in script(tmp_path, LORA.replace("def inputs", "def others")).refused("plain")
