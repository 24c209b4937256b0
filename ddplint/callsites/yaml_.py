"""DDP wraps in YAML: LightningCLI's ``class_path``, hydra's ``_target_``, names of strategies, transformers' arguments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddplint.callsites import known
from ddplint.callsites.known import FLAG, STATIC_GRAPH, Callee
from ddplint.callsites.model import Edit, Form, Setting, State, Wrap, short
from ddplint.callsites.source import Source
from ddplint.errors import DdplintError
from ddplint.fields import shown

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node, ScalarNode

MARKS = re.compile(
    rb"DistributedDataParallel|find_unused_parameters|DDPStrategy|DDPPlugin|DDPSpawn|TrainingArguments|: *[\"']?ddp"
)

_ON, _OFF = ("true", "yes", "on"), ("false", "no", "off")  # what YAML 1.1 reads as booleans
_TRAINER_KEYS = ("accelerator", "devices", "max_epochs", "num_nodes", "precision", "max_steps")
_FALSE = {"true": "false", "True": "False", "TRUE": "FALSE", "yes": "no", "Yes": "No", "YES": "NO", "on": "off"}
_FALSE |= {"On": "Off", "ON": "OFF"}


def wraps(source: Source) -> list[Wrap]:
    """The wraps in ``source``. Raises DdplintError where it is not YAML."""
    import yaml

    try:
        documents = [node for node in yaml.compose_all(source.text, Loader=yaml.SafeLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        where = f"{shown(source.path)}:{at.line + 1}" if at is not None else shown(source.path)
        raise DdplintError(f"not YAML: {error.problem}", where=where) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        what = "nested too deep" if isinstance(error, RecursionError) else short(str(error))
        raise DdplintError(f"not YAML: {what}", where=shown(source.path)) from None
    reader = _Reader(source, Counter(id(node) for top in documents for node in _mentions(top, set())))
    return [wrap for top in documents for wrap in reader.of_node(top, "", set())]


def _mentions(node: Node, seen: set[int]) -> Iterator[Node]:
    """Every node as often as the document has it: an alias is one more mention."""
    yield node
    if id(node) in seen or isinstance(node.value, str):
        return
    seen.add(id(node))
    for part in node.value:
        for child in part if isinstance(part, tuple) else (part,):
            yield from _mentions(child, seen)


class _Reader:
    def __init__(self, source: Source, mentions: Counter[int]) -> None:
        self.source = source
        self.mentions = mentions

    def of_node(self, node: Node, key: str, seen: set[int]) -> Iterator[Wrap]:
        """The wraps in ``node``, which stands under ``key``."""
        from yaml.nodes import MappingNode, SequenceNode

        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, SequenceNode):
            for part in node.value:
                yield from self.of_node(part, key, seen)
        elif isinstance(node, MappingNode):
            yield from self._of_mapping(node, key)
            for name, value in node.value:
                yield from self.of_node(value, name.value if isinstance(name.value, str) else "", seen)

    def _of_mapping(self, node: MappingNode, key: str) -> Iterator[Wrap]:
        from yaml.nodes import MappingNode, ScalarNode

        entries = {name.value: value for name, value in node.value if isinstance(name.value, str)}
        keys = {name.value: name for name, _ in node.value if isinstance(name.value, str)}
        for word in ("class_path", "_target_"):
            target = entries.get(word)
            called = _callee(target.value) if isinstance(target, ScalarNode) else None
            if called is None or not isinstance(target, ScalarNode):
                continue
            arguments = entries.get("init_args") if word == "class_path" else node
            pairs = arguments.value if isinstance(arguments, MappingNode) else []
            given = {name.value: value for name, value in pairs if isinstance(name, ScalarNode)}
            shared = any(self.mentions[id(part)] > 1 for part in (node, arguments))
            form: Form = "class_path" if word == "class_path" else "_target_"
            flags = [self._setting(given, called, flag, shared) for flag in (FLAG, STATIC_GRAPH)]
            yield self._wrap(keys[word], form, target.value, *flags)
        name = known.TRAINING_ARGUMENTS.names[FLAG]
        if name in entries and "_target_" not in entries and "class_path" not in entries and key != "init_args":
            shared = self.mentions[id(node)] > 1
            flags = [self._setting(entries, known.TRAINING_ARGUMENTS, flag, shared) for flag in (FLAG, STATIC_GRAPH)]
            yield self._wrap(keys[name], "training-arguments", name, *flags)
        strategy = entries.get("strategy")
        if isinstance(strategy, ScalarNode):
            trainer = key == "trainer" or any(word in entries for word in _TRAINER_KEYS)
            yield from self._of_strategy(keys["strategy"], strategy, trainer)

    def _of_strategy(self, key: Node, node: ScalarNode, trainer: bool) -> Iterator[Wrap]:
        setting = known.strategy(node.value)
        if setting is None or not (trainer or "find_unused" in node.value):
            return
        if setting.state == "on" and node.value.endswith(known.ON_SUFFIX):
            edit = self._edit(node, node.value, known.strategy_off(node.value, fabric=False))
            setting = Setting("on", node.value, edit, "" if edit else "it has an anchor, or is not written plainly")
        yield self._wrap(key, "strategy-name", "strategy", setting, known.OFF)

    def _setting(self, given: dict[str, Node], called: Callee, flag: str, shared: bool) -> Setting:
        from yaml.nodes import ScalarNode

        default, node = called.default(flag), given.get(called.names[flag])
        if node is None:
            known_keys = all(isinstance(key, str) and key != "<<" for key in given)
            return default if known_keys else Setting("unknown", "<<")
        if not isinstance(node, ScalarNode):
            return Setting("unknown", short(self.source.text[node.start_mark.index : node.end_mark.index]))
        kind = node.tag.rpartition(":")[2]
        if kind == "null":
            return default
        states: dict[str, State] = {**dict.fromkeys(_ON, "on"), **dict.fromkeys(_OFF, "off")}
        state = states.get(node.value.lower(), "unknown") if kind == "bool" else "unknown"
        if state != "on" or flag != FLAG:
            return Setting(state, short(node.value))
        edit = None if shared else self._edit(node, node.value, _FALSE.get(node.value, ""))
        return Setting("on", node.value, edit, "" if edit else "it has an anchor, or is not written plainly")

    def _edit(self, node: ScalarNode, before: str, after: str) -> Edit | None:
        """The edit of a scalar that is written as it is read and that no alias shares."""
        start, end = node.start_mark.index, node.end_mark.index
        quote = int(node.style in ("'", '"'))
        if self.mentions[id(node)] > 1 or not after or self.source.text[start + quote : end - quote] != before:
            return None
        return Edit(start + quote, end - quote, before, after)

    def _wrap(self, at: Node, form: Form, callee: str, flag: Setting, static: Setting) -> Wrap:
        line, column = self.source.place(at.start_mark.index)
        return Wrap(str(self.source.path), line, column, form, callee, flag, static, self.source.line(line))


def _callee(name: str) -> Callee | None:
    """What a class's dotted path is; LightningCLI takes its own classes without their module too."""
    if name in ("DDPStrategy", "DDPPlugin"):
        name = f"lightning.pytorch.strategies.{name}"
    return known.callee(name)
