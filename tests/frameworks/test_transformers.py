from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ddplint.adapters import transformers as adapter
from ddplint.adapters.base import Given
from tests.frameworks.idiom import Script, never, script, without_gradient

transformers: Any = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
}
BERT = f"""
from torch import nn
from transformers import BertConfig, BertForTokenClassification, BertForSequenceClassification, BertModel

CONFIG = {SMALL}


def build():
    model = BertForTokenClassification(BertConfig(**CONFIG, num_labels=3))
    model.bert.pooler = BertModel(BertConfig(**CONFIG)).pooler
    return model


def frozen_but_for_the_head():
    model = build()
    model.bert.embeddings.requires_grad_(False)
    return model
"""
TRAINER = (
    BERT
    + """

def trainer():
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": [1, 2, 3, 4], "attention_mask": [1, 1, 1, 1], "labels": i % 2} for i in range(4)]
    arguments = TrainingArguments(
        "OUT", per_device_train_batch_size=2, max_steps=1, disable_tqdm=True, report_to="none", use_cpu=True
    )

    class FirstStates(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(**inputs, output_hidden_states=True)
            loss = outputs.hidden_states[1].pow(2).mean()
            return (loss, outputs) if return_outputs else loss

    model = BertForSequenceClassification(BertConfig(**CONFIG))
    return FirstStates(model, arguments, train_dataset=data)
"""
)


@pytest.fixture
def bert(tmp_path: Path) -> Script:
    return script(tmp_path, BERT)


def test_a_model_needs_no_inputs_no_labels_and_no_loss(bert: Script) -> None:
    found = bert.analysed("build", rehearse=True)
    model = bert.load().build()
    ids = torch.randint(1, 40, (2, 8))
    model(input_ids=ids, labels=torch.zeros_like(ids)).loss.backward()
    assert never(found) == without_gradient(model) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert found.adapter == "transformers"
    assert found.notices == (
        "transformers: inputs made up from the configuration: input_ids (2, 8), attention_mask (2, 8)",
        "transformers: labels made up for BertForTokenClassification: labels (2, 8)",
        "no loss given: the output's own .loss stands in",
    )
    assert found.rehearsal is not None
    assert found.rehearsal.outcomes["find_unused_parameters=False"] == "reduction_error"


def test_labels_are_added_to_tensor_specs(bert: Script) -> None:
    from ddplint.rules import TensorSpec

    found = bert.analysed("build", inputs={"input_ids": TensorSpec((3, 5), "int64", 1, 40)}, from_module=False)
    assert never(found) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert found.notices == ("no loss given: the output's own .loss stands in",)


def test_a_loss_that_is_given_gets_no_labels(bert: Script) -> None:
    line = bert.refused("build", loss="loss")
    assert line == "loss: the output has no 'loss': 'loss' is not in keys ['logits']; give a dotted path into the output"


def test_a_class_is_built_from_its_configuration() -> None:
    from ddplint.analyse import analyse
    from ddplint.request import Request
    from ddplint.rules import TargetSpec

    spec = TargetSpec("transformers:BertForPreTraining", kwargs=SMALL, from_module=True)
    found = analyse(Request(spec, rehearse=False))
    assert never(found) == set()
    assert found.target == "transformers:BertForPreTraining"


def test_an_auto_class_is_built_from_its_model_type(tmp_path: Path) -> None:
    auto = script(tmp_path, "from transformers import AutoModelForCausalLM\n")
    sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    assert never(auto.analysed("AutoModelForCausalLM", kwargs={"model_type": "gpt2", **sizes})) == set()
    assert "does not say which model it builds" in auto.refused("AutoModelForCausalLM", kwargs=sizes)


def test_a_class_is_built_from_a_configuration_file(tmp_path: Path) -> None:
    transformers.BertConfig(**SMALL, num_labels=5).save_pretrained(tmp_path / "saved")
    found = script(tmp_path, BERT).analysed("BertForSequenceClassification", kwargs={"config": str(tmp_path / "saved")})
    assert next(p.shape for p in found.parameters if p.name == "classifier.weight") == (5, 16)
    missing = script(tmp_path, BERT).refused("BertForSequenceClassification", kwargs={"config": str(tmp_path / "gone")})
    assert "the factory raised" in missing


def test_from_pretrained_reads_no_weights(tmp_path: Path) -> None:
    transformers.BertConfig(**SMALL, num_labels=5).save_pretrained(tmp_path / "saved")  # and no weights beside it
    source = f"""
def build():
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained({str(tmp_path / "saved")!r}, num_labels=3)
"""
    found = script(tmp_path, source).analysed("build")
    assert never(found) == set()
    assert next(p.shape for p in found.parameters if p.name == "classifier.weight") == (3, 16)
    assert found.notices[0].endswith(
        "BertForSequenceClassification was built from its configuration, and no weights were read"
    )
    gone = script(tmp_path, source.replace("saved", "gone")).refused("build")
    assert "the factory raised" in gone


@pytest.mark.filterwarnings("ignore")
def test_a_trainers_compute_loss_is_the_step(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")  # Trainer asks for it
    source = script(tmp_path, TRAINER.replace("OUT", str(tmp_path / "out")))
    found = source.analysed("trainer", rehearse=True)
    expected: set[str] = set()

    class Look(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is Any here
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            expected.update(without_gradient(model))

    trainer = source.load().trainer()
    trainer.add_callback(Look)
    trainer.train()
    assert never(found) == expected
    assert {name.split(".")[0] for name in expected} == {"bert", "classifier"}
    assert {p.cause for p in found.parameters if p.name in expected} == {"output-only"}
    start = "transformers: Trainer.compute_loss is the step, on the first batch of its train_dataset"
    assert found.notices[0].startswith(start)
    assert found.rehearsal is not None
    assert found.rehearsal.outcomes["find_unused_parameters=True"] == "ok"


@pytest.mark.filterwarnings("ignore")
def test_a_trainers_dataset_that_fails_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")  # Trainer asks for it
    source = TRAINER.replace("OUT", str(tmp_path / "out")).replace("train_dataset=data", "train_dataset=[1, 2]")
    line = script(tmp_path, source).refused("trainer")
    assert line.startswith("the Trainer's train_dataset raised") or ": the Trainer's train_dataset raised" in line


def bert_like(**more: Any) -> Any:
    return transformers.BertConfig(**SMALL, **more)


def speech(**more: Any) -> Any:
    return transformers.Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        conv_dim=(8, 8),
        conv_kernel=(10, 8),
        conv_stride=(16, 20),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=8,
        **more,
    )


def vision(**more: Any) -> Any:
    return transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=32, patch_size=8, **more
    )


def seq2seq() -> Any:
    return transformers.BartConfig(
        vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=24, num_labels=3,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip


def gpt2() -> Any:
    return transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16)


def marian() -> Any:
    return transformers.MarianConfig(
        vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=24, pad_token_id=39, decoder_start_token_id=39,
        eos_token_id=0, forced_eos_token_id=0,
    )  # fmt: skip


def t5() -> Any:
    return transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )


def whisper() -> Any:
    return transformers.WhisperConfig(
        vocab_size=60, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_source_positions=20,
        max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip


def clip() -> Any:
    text = {**SMALL, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    picture = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    return transformers.CLIPConfig(
        text_config=text, vision_config={**picture, "image_size": 32, "patch_size": 8}, projection_dim=8
    )


HEADS: list[tuple[str, Any]] = [
    ("BertForSequenceClassification", bert_like(num_labels=3)),
    ("BertForSequenceClassification", bert_like(num_labels=1)),
    ("BertForSequenceClassification", bert_like(num_labels=3, problem_type="multi_label_classification")),
    ("BertForTokenClassification", bert_like(num_labels=3)),
    ("BertForMaskedLM", bert_like()),
    ("BertForPreTraining", bert_like()),
    ("BertForNextSentencePrediction", bert_like()),
    ("BertForMultipleChoice", bert_like()),
    ("BertForQuestionAnswering", bert_like()),
    ("GPT2LMHeadModel", transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16)),
    (
        "GPT2ForSequenceClassification",
        transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16),
    ),
    ("MarianMTModel", marian()),
    ("Wav2Vec2ForCTC", speech(vocab_size=20)),
    ("Wav2Vec2ForSequenceClassification", speech(num_labels=3)),
    ("ViTForImageClassification", vision(num_labels=3)),
    ("ViTForMaskedImageModeling", vision(encoder_stride=8)),
    ("BartForConditionalGeneration", seq2seq()),
    ("BartForSequenceClassification", seq2seq()),
    ("BartForQuestionAnswering", seq2seq()),
    ("T5ForConditionalGeneration", t5()),
    ("WhisperForConditionalGeneration", whisper()),
    ("CLIPModel", clip()),
]


@pytest.mark.parametrize(("name", "config"), HEADS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(HEADS)])
def test_each_kind_of_head_gets_what_its_loss_needs(name: str, config: Any) -> None:
    model = getattr(transformers, name)(config)
    found = adapter.adapt(model, Given(inputs=False, loss=False, step=False))
    assert found is not None
    assert found.inputs is not None
    args, kwargs = found.inputs()
    loss = model(*args, **kwargs).loss
    assert loss.requires_grad
    assert torch.isfinite(loss)


@pytest.mark.parametrize(
    ("name", "config"), [("BertModel", bert_like()), ("T5Model", t5()), ("BartModel", seq2seq()), ("ViTModel", vision())]
)
def test_a_model_without_a_head_gets_inputs_alone(name: str, config: Any) -> None:
    model = getattr(transformers, name)(config)
    found = adapter.adapt(model, Given(inputs=False, loss=False, step=False))
    assert found is not None
    assert found.inputs is not None
    args, kwargs = found.inputs()
    assert model(*args, **kwargs)[0].requires_grad


def test_made_up_inputs_are_the_same_each_time_and_never_shared() -> None:
    found = adapter.adapt(transformers.BertForMaskedLM(bert_like()), Given(inputs=False, loss=False, step=False))
    assert found is not None
    assert found.inputs is not None
    (_, first), (_, second) = found.inputs(), found.inputs()
    assert all(torch.equal(first[key], second[key]) and first[key] is not second[key] for key in first)


def test_what_is_not_made_up_is_one_line(tmp_path: Path) -> None:
    source = """
from transformers import BertConfig, BertModel


def build():
    model = BertModel(BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    model.main_input_name = "point_clouds"
    return model
"""
    line = script(tmp_path, source).refused("build")
    assert line.startswith("inputs: BertModel takes point_clouds, which is not made up; write inputs()")
