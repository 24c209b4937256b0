"""transformers: example inputs from ``dummy_inputs`` or the configuration, labels where the head needs them for its loss.

Nothing is downloaded and no weights are read: a model class is built from its configuration class. Of a ``Trainer`` the
model is what DDP wraps, and ``compute_loss`` is the step (transformers/trainer.py, ``Trainer.training_step``).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ddplint.adapters.base import Adapted, Given, Inputs, fresh, is_a, known
from ddplint.blame import blame
from ddplint.errors import DdplintError
from ddplint.trace.patching import patched

NAME = "transformers"
_MODEL = ("transformers.modeling_utils", "PreTrainedModel")
_TRAINER = ("transformers.trainer", "Trainer")
_AUTO = ("transformers.models.auto.auto_factory", "_BaseAutoModelClass")
_GIVE_INPUTS = "write inputs() -> (args, kwargs) beside the factory, or [target] inputs in a rule file"

BATCH, LENGTH, CHOICES, SAMPLES, FRAMES, TRANSCRIPT = 2, 8, 2, 16_000, 100, 3


def from_class(factory: object) -> Callable[..., Any] | None:
    """A model class of transformers as a factory whose keyword arguments are those of its configuration; else None.

    ``config`` names a configuration file or its folder; an Auto class needs that, or ``model_type``.
    """
    model, auto = known(*_MODEL), known(*_AUTO)
    if not isinstance(factory, type):
        return None
    if auto is not None and issubclass(factory, auto):
        choose: Any = factory
        return lambda **kwargs: choose.from_config(_configured(None, kwargs))
    if model is not None and issubclass(factory, model):
        build: Any = factory
        return lambda **kwargs: build(_configured(build.config_class, kwargs))
    return None


def _configured(config_class: Any, kwargs: dict[str, Any]) -> Any:
    import transformers  # the target has imported it: its factory is a class of it

    path, kind = kwargs.pop("config", None), kwargs.pop("model_type", None)
    if path is not None:
        reader = config_class or transformers.AutoConfig
        return reader.from_pretrained(path, local_files_only=True, **kwargs)
    if config_class is not None:
        return config_class(**kwargs)
    if kind is None:
        raise DdplintError(
            "an Auto class does not say which model it builds",
            where="factory",
            fix='give kwargs = { model_type = "bert" }, or { config = "path/to/config.json" }',
        )
    return transformers.AutoConfig.for_model(kind, **kwargs)


@contextmanager
def without_weights() -> Iterator[None]:
    """While the block runs ``from_pretrained`` builds a model from its configuration and reads no weights.

    The configuration is had as ever: from a folder, the cache or the hub. The model is in training mode, as whatever trains
    it puts it. Nothing is done where the target has not imported transformers.
    """
    if "transformers" not in sys.modules:
        yield
        return
    base = importlib.import_module(_MODEL[0]).PreTrainedModel

    def from_pretrained(cls: Any, /, name: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        if config is None or isinstance(config, (str, os.PathLike)):
            config, kwargs = cls.config_class.from_pretrained(config or name, return_unused_kwargs=True, **kwargs)
        kept = {key: kwargs[key] for key in ("dtype", "torch_dtype", "attn_implementation") if key in kwargs}
        if kept.get("dtype", kept.get("torch_dtype")) == "auto":
            kept = {key: value for key, value in kept.items() if not key.endswith("dtype")}
        model = cls._from_config(config, **kept)
        model.ddplint_unread = True
        return model

    with patched(base, from_pretrained=classmethod(from_pretrained)):
        yield


def adapt(made: Any, given: Given) -> Adapted | None:
    """``made`` as transformers trains it; None if it is neither a PreTrainedModel nor a Trainer. Raises DdplintError."""
    if is_a(made, _TRAINER):
        return _of_trainer(made, given)
    return of_model(made, made, given) if is_a(made, _MODEL) else None


def of_model(model: nn.Module, base: Any, given: Given, name: str = NAME) -> Adapted:
    """``model``, around or the same as the PreTrainedModel ``base``, whose configuration and head say what goes in."""
    if given.step or given.known:
        return Adapted(name, model)
    notices = []
    if getattr(base, "ddplint_unread", False):
        notices.append(f"transformers: {type(base).__name__} was built from its configuration, and no weights were read")
    make = None
    if not given.inputs:
        example = _inputs(base)
        notices.append(f"transformers: inputs made up from the configuration: {_shapes(example)}")
        make = _maker(base, example, labels=not given.loss)
    else:
        example = {}
    complete = None
    if not given.loss:
        labels = _labels(base, example)
        if labels and not given.inputs:
            notices.append(f"transformers: labels made up for {type(base).__name__}: {_shapes(labels)}")
        complete = _completer(base)
    return Adapted(name, model, inputs=make, complete=complete, notices=tuple(notices))


def _maker(base: Any, example: dict[str, Any], *, labels: bool) -> Callable[[], Inputs]:
    def make() -> Inputs:
        made = {**example, **(_labels(base, example) if labels else {})}
        return (), {key: fresh(value) for key, value in _needed(base, made).items()}

    return make


def _completer(base: Any) -> Callable[[Inputs], Inputs]:
    """Adds labels to inputs that have none."""

    def complete(inputs: Inputs) -> Inputs:
        args, kwargs = inputs
        named = {**dict(zip(_takes(base), args, strict=False)), **kwargs}
        return args, {**kwargs, **{key: value for key, value in _labels(base, named).items() if key not in named}}

    return complete


def _shapes(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{key}" for key, value in values.items()
    )


# ---------------------------------------------------------------------- inputs


def _takes(base: Any) -> list[str]:
    return list(inspect.signature(base.forward).parameters)


def _inputs(base: Any) -> dict[str, Any]:
    """Example inputs by name, without labels. Raises DdplintError where they can't be made up."""
    config, takes = base.config, _takes(base)
    own = _dummy_inputs(base)
    if own:
        return own
    if any(getattr(config, key, None) is not None for key in ("image_token_id", "image_token_index", "audio_token_id")):
        raise _unknown(base, "text with images or sounds in it")
    names = [base.main_input_name]
    two_towers = hasattr(config, "text_config") and hasattr(config, "vision_config")
    names += [name for name in ("input_ids", "pixel_values") if two_towers and name in takes and name not in names]
    made: dict[str, Any] = {name: _MAKERS[name](base) if name in _MAKERS else None for name in names}
    lacking = [name for name, value in made.items() if value is None]
    if lacking:
        raise _unknown(base, ", ".join(lacking))
    if "input_ids" in made and "attention_mask" in takes:
        made["attention_mask"] = torch.ones_like(made["input_ids"])
    if _head(base) == "MaskedImageModeling" and "bool_masked_pos" in takes:
        patches = (config.image_size // config.patch_size) ** 2
        made["bool_masked_pos"] = (torch.arange(patches) % 2 == 0).expand(BATCH, patches).clone()
    return made


def _unknown(base: Any, what: str) -> DdplintError:
    return DdplintError(f"{type(base).__name__} takes {what}, which is not made up", where="inputs", fix=_GIVE_INPUTS)


def _needed(base: Any, made: dict[str, Any]) -> dict[str, Any]:
    """``made`` with the decoder's ids, where a model with a decoder gets no labels to take them from."""
    lacks = "labels" not in made and "decoder_input_ids" not in made and "decoder_input_ids" in _takes(base)
    return {**made, "decoder_input_ids": _ids(base)} if lacks else made


def _dummy_inputs(base: Any) -> dict[str, Any]:
    """The class's own ``dummy_inputs``; {} where it has only the ones that all classes share, or they lie on meta."""
    shared = known(*_MODEL)
    if shared is None or type(base).dummy_inputs is getattr(shared, "dummy_inputs", None):
        return {}
    takes = _takes(base)
    own = {key: value for key, value in base.dummy_inputs.items() if key in takes}
    return own if own and all(isinstance(v, torch.Tensor) and not v.is_meta for v in own.values()) else {}


def _ids(base: Any) -> torch.Tensor:
    """Token ids, none of them special; each row ends as a sequence does. Shape (BATCH, length), a choice more where the
    head chooses.
    """
    text = base.config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None) or LENGTH + 2
    length = max(2, min(LENGTH, positions - 2))
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id")
    special = {getattr(text, name, None) for name in names}
    size = getattr(text, "vocab_size", 64)  # CANINE hashes characters, and has none
    plain = [token for token in range(min(size, 64)) if token not in special] or [0]
    # Without padding a decoder's classification head takes a single row.
    rows = 1 if _head(base) == "SequenceClassification" and getattr(text, "pad_token_id", None) is None else BATCH
    shape = (rows, CHOICES, length) if _head(base) == "MultipleChoice" else (rows, length)
    ids = torch.tensor(plain)[torch.arange(torch.Size(shape).numel()) % len(plain)].reshape(shape)
    end = getattr(text, "eos_token_id", None)
    if isinstance(end, int) and 0 <= end < size:
        ids[..., -1] = end  # BART's classification head reads the last of them
    return ids


def _pixels(base: Any) -> torch.Tensor | None:
    config = getattr(base.config, "vision_config", None) or base.config
    size = getattr(config, "image_size", None) or (None if base.main_input_name != "pixel_values" else 64)
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    channels = getattr(config, "num_channels", 3)
    frames = getattr(config, "num_frames", None)
    return _waves((BATCH, *([frames] if frames else []), channels, height, width))


def _sound(base: Any) -> torch.Tensor:
    config = base.config
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length") and hasattr(config, "patch_size"):
        return _waves((BATCH, config.max_length, config.num_mel_bins))  # a spectrogram
    return _waves((BATCH, SAMPLES))


def _features(base: Any) -> torch.Tensor | None:
    config = base.config
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        return _waves((BATCH, config.num_mel_bins, 2 * config.max_source_positions))  # Whisper halves them, and checks
    size = getattr(config, "input_feat_per_channel", None) or getattr(config, "feature_projection_input_dim", None)
    return None if size is None else _waves((BATCH, FRAMES, size))


def _waves(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.linspace(0.0, 40.0, torch.Size(shape).numel()).sin().reshape(shape)


_MAKERS: dict[str, Callable[[Any], torch.Tensor | None]] = {
    "input_ids": _ids,
    "pixel_values": _pixels,
    "input_values": _sound,
    "input_features": _features,
}


# ---------------------------------------------------------------------- labels


def _head(base: Any) -> str:
    """The kind of head, as the class's name says it: "SequenceClassification", "CausalLM", …; "" for a model without."""
    name = type(base).__name__
    found = re.search(r"For([A-Z]\w*)$", name)
    return found[1] if found else "CausalLM" if name.endswith("LMHeadModel") else ""


def _labels(base: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What ``base`` takes to compute a loss of ``inputs``; {} where nothing is known to be needed."""
    takes, head = _takes(base), _head(base)
    rows = _rows(inputs)
    if "start_positions" in takes and "end_positions" in takes:
        return {"start_positions": torch.zeros(rows, dtype=torch.long), "end_positions": torch.ones(rows, dtype=torch.long)}
    if "return_loss" in takes:
        return {"return_loss": True}
    if "labels" not in takes:
        return {}
    made = _label(base, head, inputs, rows)
    if made is None:
        return {}
    ordered = "next_sentence_label" in takes or "sentence_order_label" in takes
    if not ordered:
        return {"labels": made}
    other = "next_sentence_label" if "next_sentence_label" in takes else "sentence_order_label"
    return {"labels": made, other: _cycle((rows,), 2)}


def _label(base: Any, head: str, inputs: Mapping[str, Any], rows: int) -> Any:
    config = base.config
    count = max(getattr(config, "num_labels", 2) or 2, 1)
    if head in ("SequenceClassification", "ImageClassification", "VideoClassification", "XVector"):
        return _classes(config, rows, count)
    if head == "AudioClassification":
        return _classes(config, rows, count)
    if head in ("NextSentencePrediction", "MultipleChoice"):
        return _cycle((rows,), 2)
    if head == "TokenClassification":
        shape = _tokens(inputs)
        return None if shape is None else _cycle(shape, count)
    if head == "SemanticSegmentation":
        return _cycle((rows, *inputs["pixel_values"].shape[-2:]), count) if "pixel_values" in inputs else None
    if head == "CTC":
        return 1 + _cycle((rows, TRANSCRIPT), max(config.vocab_size - 1, 1))
    if head in ("CausalLM", "MaskedLM", "PreTraining", "ConditionalGeneration", "SpeechSeq2Seq") or base.can_generate():
        ids = inputs.get("input_ids")
        return ids.clone() if isinstance(ids, torch.Tensor) else _ids(base) if "decoder_input_ids" in _takes(base) else None
    return None


def _classes(config: Any, rows: int, count: int) -> torch.Tensor:
    """Of one class a row, of several, or numbers, as ``config.problem_type`` has it (else as transformers guesses)."""
    problem = getattr(config, "problem_type", None) or ("regression" if count == 1 else "single_label_classification")
    if problem == "regression":
        return torch.linspace(0.0, 1.0, rows * count).reshape((rows, count) if count > 1 else (rows,))
    if problem == "multi_label_classification":
        return _cycle((rows, count), 2).float()
    return _cycle((rows,), count)


def _cycle(shape: tuple[int, ...], count: int) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % count).reshape(shape)


def _rows(inputs: Mapping[str, Any]) -> int:
    return next((value.shape[0] for value in inputs.values() if isinstance(value, torch.Tensor) and value.dim()), BATCH)


def _tokens(inputs: Mapping[str, Any]) -> tuple[int, ...] | None:
    for name in ("input_ids", "inputs_embeds"):
        value = inputs.get(name)
        if isinstance(value, torch.Tensor):
            return tuple(value.shape[:2])
    return None


# ---------------------------------------------------------------------- Trainer


class _Held:
    """A model's Trainer, in a slot: it is no state of the model that a path could change."""

    __slots__ = ("trainer",)

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer


def _of_trainer(trainer: Any, given: Given) -> Adapted:
    model = trainer.model
    model.train()  # as Trainer.training_step does
    model.ddplint_trainer = _Held(trainer)
    if given.step or given.loss or given.known:
        return Adapted(NAME, model)
    if given.inputs:
        raise DdplintError(
            "a Trainer takes its batch from its train_dataset, and inputs are given too",
            where="inputs",
            fix="leave out inputs, or return trainer.model",
        )
    batch, origin = _batch(trainer)
    notice = f"transformers: Trainer.compute_loss is the step, on {origin}: {_shapes(batch)}"
    return Adapted(NAME, model, step=functools.partial(_compute_loss, batch), notices=(notice,))


def _batch(trainer: Any) -> tuple[dict[str, Any], str]:
    """What compute_loss is given, and where that is from."""
    if trainer.train_dataset is not None:
        return _first_batch(trainer), "the first batch of its train_dataset"
    base = _base(trainer.model)
    if base is None:
        raise DdplintError("the Trainer has no train_dataset", where="inputs", fix="give it one of a few examples")
    example = _inputs(base)
    return _needed(base, {**example, **_labels(base, example)}), "inputs made up from the configuration"


def _base(model: Any) -> Any:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base if is_a(base, _MODEL) else None


def _compute_loss(batch: dict[str, Any], model: Any) -> Any:
    held: _Held = model.ddplint_trainer
    device = next(model.parameters()).device
    return held.trainer.compute_loss(
        model, {key: v.to(device) if isinstance(v, torch.Tensor) else v for key, v in fresh(batch).items()}
    )


def _first_batch(trainer: Any) -> dict[str, Any]:
    """The first batch of the Trainer's own loader, drawn from a seed."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(0)
    try:
        return dict(next(iter(trainer.get_train_dataloader())))
    except Exception as error:
        raise blame(
            "the Trainer's train_dataset", error, "give it a dataset of a few examples that need no download"
        ) from error
    finally:
        torch.set_rng_state(state)
