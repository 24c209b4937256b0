"""``ddplint.guard`` where people call it: in a LightningModule, before a ``Trainer``, before ``Accelerator.prepare``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddplint.guard import freeze_unused, log_unused_once

RULES = """\
[checkpoint]
name = "small"

[target]
factory = "net.py:build"

[[unused]]
params = ["{prefix}spare.**"]
reason = "a head of another task"
action = "freeze"
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        out = self.used(x)
        return {"loss": out.pow(2).mean(), "logits": out}


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules").mkdir()
    return tmp_path / "rules" / "small.toml"


def test_in_configure_model_of_a_lightning_module(rules: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under Lightning's DDP strategy, its flag off: with one parameter unused the second step would raise."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    rules.write_text(RULES.format(prefix="net."))

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.frozen: tuple[str, ...] = ()

        def configure_model(self) -> None:
            self.frozen += freeze_unused(self, ckpt="small").names

        def on_train_start(self) -> None:
            log_unused_once(self.trainer.strategy.model, ckpt="small")

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(batch[0])["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 4)), batch_size=2)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        strategy="ddp_find_unused_parameters_false",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    with caplog.at_level(logging.INFO, "ddplint"):
        trainer.fit(module, loader)
    assert module.frozen == ("net.spare.weight", "net.spare.bias")
    assert trainer.global_step == 4
    said = [record.getMessage() for record in caplog.records if record.name == "ddplint"]
    assert said == ["0 parameters without a gradient in the first iteration: none"]


def test_before_a_transformers_trainer(rules: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    rules.write_text(RULES.format(prefix=""))
    model = Net()
    spare = model.spare.weight.clone()
    assert freeze_unused(model, ckpt="small").names == ("spare.weight", "spare.bias")
    watch = log_unused_once(model, ckpt="small")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        use_cpu=True,
        max_steps=3,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
    )
    data = [{"x": torch.randn(4), "labels": torch.zeros(())} for _ in range(8)]
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    with caplog.at_level(logging.INFO, "ddplint"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert torch.equal(model.spare.weight, spare)
    assert watch.unused == ()


def test_before_accelerate_prepares(rules: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    rules.write_text(RULES.format(prefix=""))
    model = Net()
    assert freeze_unused(model, ckpt="small").numel == 20
    accelerator = accelerate.Accelerator(cpu=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    prepared, optimizer = accelerator.prepare(model, optimizer)
    watch = log_unused_once(prepared, ckpt="small")
    for _ in range(3):
        accelerator.backward(prepared(torch.randn(2, 4))["loss"])
        optimizer.step()
        optimizer.zero_grad()
    assert watch.unused == ()
