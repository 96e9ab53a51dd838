"""One `config.json`: typed access to its keys, and the refusal of what is not understood."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cost_models.errors import UnsupportedModel
from cost_models.field_reader import LARGEST_LAYERS, FieldReader
from cost_models.hf_config.inert_keys import INERT_KEYS

LOC: Final = ("model", "hf_config")

STRUCTURAL_WORDS: Final = (
    "expert", "layer", "head", "dim", "size", "rank", "mamba", "conv", "vision", "window", "mtp", "nextn",
)  # fmt: skip
"""The contract's list: an unknown key with one of these in its name may change the shape of the model."""

ACTIVATIONS: Final = {
    "silu": "silu", "swish": "silu",
    "gelu": "gelu", "gelu_python": "gelu",
    "gelu_new": "gelu_new", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu", "relu": "relu", "relu2": "relu2",
}  # fmt: skip
"""Names in transformers' ACT2FN to ours."""


class ConfigKeys(FieldReader):
    """A config with its `model_type`; defaults are those of the type's transformers config class."""

    def __init__(self, config: Mapping[str, Any], model_type: str, aliases: Mapping[str, str]) -> None:
        super().__init__(config, LOC, model_type)
        self.model_type = model_type
        self.inert: set[str] = set()
        self.fields = self._canonical(config, aliases)

    def unsupported(self, key: str, code: str, message: str) -> UnsupportedModel:
        """A refusal that names the key."""
        return UnsupportedModel((*self.loc, key), code, message)

    def layers(self, key: str, default: int) -> int:
        """How many layers; bounded, for they are held one by one."""
        return self.size(key, default, largest=LARGEST_LAYERS)

    def size_or(self, key: str, derived: int, reason: str) -> int:
        """A positive integer that null or nothing leaves to be derived."""
        if self.fields.get(key) is not None:
            return self.size(key, derived)
        self.read.add(key)
        self.assumptions.append(f"{self._path(key)} left out: {derived}, {reason}")
        return derived

    def activation(self, key: str, default: str) -> str:
        """The activation function, by our name."""
        name = self.text(key, default)
        if name not in ACTIVATIONS:
            raise self.unsupported(
                key, "unsupported_activation", f"{key} {name!r} is not known; known: {sorted(ACTIVATIONS)}"
            )
        return ACTIVATIONS[name]

    def fixed(self, key: str, *accepted: Any) -> None:
        """A key that the type's class does not have, or that is only understood with these values."""
        self.read.add(key)
        if key in self.fields and not any(
            type(self.fields[key]) is type(value) and self.fields[key] == value for value in accepted
        ):
            shown = ", ".join(repr(value) for value in accepted)
            message = f"{key} = {self.fields[key]!r} is not understood for {self.model_type}; understood: {shown}"
            raise self.unsupported(key, "unsupported_value", message)

    def ignore(self, *keys: str) -> None:
        """Keys of this type that say nothing about weights or work."""
        self.inert.update(keys)

    def nested(self, key: str) -> ConfigKeys:
        """A part of its own (null or nothing: all its defaults)."""
        part = self.value(key, {})
        if part is None:
            part = {}
        if not isinstance(part, Mapping):
            raise self.error(key, "not_an_object", f"{key} must be an object")
        inner = ConfigKeys(part, self.model_type, {})
        inner.loc = (*self.loc, key)
        inner.assumptions = self.assumptions
        return inner

    def refuse_unknown(self) -> None:
        """Refuses the keys that may be structure; lists those that are ignored."""
        for key, value in self.fields.items():
            if key in self.read or key in self.inert or key in INERT_KEYS:
                continue
            if isinstance(value, Mapping) and value:
                message = f"{key} is a nested part that {self.model_type} is not known to have"
                raise self.unsupported(key, "unknown_nested_part", message)
            if value is not None and any(word in key.lower() for word in STRUCTURAL_WORDS):
                message = f"{key} is not a known key of {self.model_type} and may change the shape of the model"
                raise self.unsupported(key, "unknown_structural_key", message)
            self.assumptions.append(f"{self._path(key)} ignored: not a known key of {self.model_type}")
        if self.fields.get("quantization_config"):
            self.assumptions.append(f"{self._path('quantization_config')} ignored: a storage format, not a shape")

    def _canonical(self, config: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
        fields = {key: value for key, value in config.items() if key not in aliases}
        for alias, key in aliases.items():
            if alias not in config:
                continue
            if key in fields and fields[key] != config[alias]:
                message = f"{alias} {config[alias]!r} contradicts {key} {fields[key]!r}, its other name"
                raise self.error(alias, "contradiction", message)
            fields[key] = config[alias]
        return fields
