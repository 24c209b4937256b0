from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.frameworks.idiom import Script, never, script, without_gradient

lightning: Any = pytest.importorskip("lightning")

AUTOENCODER = """
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.encoder, self.decoder, self.classifier = nn.Linear(4, 3), nn.Linear(3, 4), nn.Linear(3, 2)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        code = self.encoder(x)
        loss = nn.functional.mse_loss(self.decoder(code), x)
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss, "batch": batch_idx, "epoch": self.current_epoch}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(8, 4), torch.zeros(8)), batch_size=2, shuffle=True, num_workers=1)
"""

GAN = """
import pytorch_lightning as pl
import torch
from torch import nn


class Gan(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator, self.spare = nn.Linear(2, 4), nn.Linear(4, 1), nn.Linear(2, 2)
        self.example_input_array = torch.randn(3, 2)

    def forward(self, z):
        return self.generator(z)

    def training_step(self, z):
        g, d = self.optimizers()
        self.toggle_optimizer(g)
        fake = self(z)
        g.zero_grad()
        self.manual_backward(-self.discriminator(fake).mean())
        g.step()
        self.untoggle_optimizer(g)
        self.toggle_optimizer(d)
        d.zero_grad()
        self.manual_backward(self.discriminator(fake.detach()).mean())
        d.step()
        self.untoggle_optimizer(d)
        schedule = self.lr_schedulers()
        schedule.step()
        self.log("step", float(self.trainer.global_step))

    def configure_optimizers(self):
        g = torch.optim.Adam(self.generator.parameters())
        d = torch.optim.SGD(self.discriminator.parameters(), lr=0.1)
        return [g, d], [torch.optim.lr_scheduler.StepLR(g, 1)]

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(4, 2), batch_size=2)
"""


def fitted(module: Any, package: Any) -> nn.Module:
    """``module`` after one real training step, with the gradients that its backward left."""
    module.on_train_batch_end = lambda *_: setattr(module, "left", without_gradient(module))
    package.Trainer(
        fast_dev_run=True, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, logger=False
    ).fit(module)
    return module  # type: ignore[no-any-return]


@pytest.fixture
def autoencoder(tmp_path: Path) -> Script:
    return script(tmp_path, AUTOENCODER)


@pytest.mark.filterwarnings("ignore")
def test_training_step_is_the_step(autoencoder: Script) -> None:
    found = autoencoder.analysed("LitAutoEncoder", rehearse=True)
    left = fitted(autoencoder.load().LitAutoEncoder(), lightning.pytorch).left
    assert never(found) == left == {"classifier.weight", "classifier.bias"}
    assert found.adapter == "lightning"
    assert found.notices == ("lightning: training_step gets the first batch of train_dataloader()",)
    assert found.rehearsal is not None
    assert list(found.rehearsal.outcomes.values()) == ["reduction_error", "ok", "ok"]


@pytest.mark.filterwarnings("ignore")
def test_manual_optimization_is_rehearsed_as_lightnings_strategy_runs_it(tmp_path: Path) -> None:
    """The outcomes are those of real Lightning: two ranks over gloo, ``DDPStrategy`` with the flag off and on."""
    pytorch_lightning: Any = pytest.importorskip("pytorch_lightning")
    gan = script(tmp_path, GAN)
    found = gan.analysed("Gan", rehearse=True)
    left = fitted(gan.load().Gan(), pytorch_lightning).left
    assert never(found) == left == {"spare.weight", "spare.bias"}
    assert found.rehearsal is not None
    assert found.rehearsal.outcomes["find_unused_parameters=False"] == "reduction_error"
    assert found.rehearsal.outcomes["find_unused_parameters=True"] == "ok"
    assert not [p.name for p in found.parameters if p.bypass is not None]
    assert any("optimization is manual" in notice for notice in found.notices)
    assert any("the optimizers leave out 2" in notice and "spare.weight" in notice for notice in found.notices)


def test_an_output_beside_the_loss_is_output_only(tmp_path: Path) -> None:
    source = AUTOENCODER.replace('"batch": batch_idx', '"logits": self.classifier(code)')
    found = script(tmp_path, source).analysed("LitAutoEncoder", rehearse=True)
    assert {p.cause for p in found.parameters if p.usage == "never"} == {"output-only"}
    assert found.rehearsal is not None
    assert found.rehearsal.outcomes["static_graph=True"] == "reduction_error"


def test_what_only_the_optimizer_has_is_outside(tmp_path: Path) -> None:
    source = AUTOENCODER.replace("Adam(self.parameters()", "Adam([*self.parameters(), *nn.Linear(5, 1).parameters()]")
    found = script(tmp_path, source).analysed("LitAutoEncoder")
    assert [(entry.shape, entry.in_loss) for entry in found.outside] == [((1, 5), False), ((1,), False)]


def test_a_batch_that_is_given_goes_before_the_loader(tmp_path: Path) -> None:
    source = AUTOENCODER.replace("DataLoader(TensorDataset", "missing(TensorDataset")
    given = f"{source}\n\ndef inputs():\n    return ((torch.ones(2, 4), None),), {{}}\n"
    found = script(tmp_path, given).analysed("LitAutoEncoder")
    assert never(found) == {"classifier.weight", "classifier.bias"}
    assert found.notices == ()


def test_a_schedule_of_the_first_steps_is_followed(tmp_path: Path) -> None:
    source = AUTOENCODER.replace(
        'return {"loss"', "loss = loss + self.classifier(code).sum() if batch_idx % 2 else loss\n        return {'loss'"
    )
    found = script(tmp_path, source.replace("'loss'\": loss", "'loss': loss")).analysed("LitAutoEncoder")
    assert {p.name for p in found.parameters if p.usage == "sometimes"} == {"classifier.weight", "classifier.bias"}


def test_configure_model_and_setup_make_layers(tmp_path: Path) -> None:
    source = AUTOENCODER.replace(", self.classifier = nn.Linear(4, 3), nn.Linear(3, 4), nn.Linear(3, 2)", " = 0, 0").replace(
        "    def configure_optimizers",
        "    def setup(self, stage):\n        assert stage == 'fit'\n        self.encoder = nn.Linear(4, 3)\n\n"
        "    def configure_model(self):\n        self.decoder, self.late = nn.Linear(3, 4), nn.Linear(1, 1)\n\n"
        "    def configure_optimizers",
    )
    assert never(script(tmp_path, source).analysed("LitAutoEncoder")) == {"late.weight", "late.bias"}


def test_a_factory_may_return_one_with_a_loss_of_its_own(tmp_path: Path) -> None:
    source = f"""{AUTOENCODER}
    def forward(self, x):
        return self.classifier(self.encoder(x))


def build():
    return LitAutoEncoder()


def inputs():
    return (torch.ones(2, 4),), {{}}


def loss(output):
    return output.sum()
"""
    assert never(script(tmp_path, source).analysed("build")) == {"decoder.weight", "decoder.bias"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            ("DataLoader(TensorDataset", "missing(TensorDataset"),
            ("train_dataloader() raised NameError", "inputs() -> ((batch,)"),
        ),
        (("def train_dataloader", "def other"), ("LitAutoEncoder has no example batch", "inputs() -> ((batch,)")),
        (('return {"loss"', 'return {"lost"'), ("training_step returned a dict", 'a dict with "loss"')),
        (("x, _ = batch", "x, _ = self.trainer.nowhere"), ("stand-in for Lightning's Trainer has no 'nowhere'",)),
        (("__init__(self)", "__init__(self, width)"), ("the factory raised TypeError", "width")),
        (("super().__init__()\n", "super().__init__()\n        self.setup = lambda stage: 1 / 0\n"), ("setup() raised",)),
        (("lr=1e-3", "lr=-1"), ("configure_optimizers() raised ValueError",)),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, change: tuple[str, str], says: tuple[str, ...]) -> None:
    line = script(tmp_path, AUTOENCODER.replace(*change)).refused("LitAutoEncoder")
    assert [part for part in says if part not in line] == []
