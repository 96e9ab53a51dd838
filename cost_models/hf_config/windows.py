"""Which layers see only a window of the sequence, by the rule of each family's transformers config class."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import WindowPolicy

WINDOWED = ("sliding_attention", "chunked_attention")
LAYER_TYPES = ("full_attention", *WINDOWED)


def every_layer(default: int | None) -> WindowPolicy:
    """`sliding_window` on all layers, or on none where it is null (Mistral, Mixtral, Phi-3, StarCoder2)."""

    def policy(keys: ConfigKeys, layers: int) -> Sequence[int | None]:
        keys.ignore("layer_types", "max_window_layers", "use_sliding_window")
        return [window_size(keys, "sliding_window", default)] * layers

    return policy


def alternating(window: int | None, pattern: int, *, pattern_key: str | None = None) -> WindowPolicy:
    """All layers but every `pattern`-th one, unless `layer_types` says otherwise (Gemma 2 and 3, Cohere 2, gpt-oss)."""

    def policy(keys: ConfigKeys, layers: int) -> Sequence[int | None]:
        keys.ignore("_sliding_window_pattern")
        size = window_size(keys, "sliding_window", window)
        every = pattern
        if pattern_key and (pattern_key in keys.fields or keys.fields.get("layer_types") is None):
            every = keys.size(pattern_key, pattern)
        return by_layer_types(keys, layers, size, [bool((i + 1) % every) for i in range(layers)])

    return policy


def beyond_max_window_layers(keys: ConfigKeys, layers: int) -> Sequence[int | None]:
    """With `use_sliding_window`: the layers from `max_window_layers` on (Qwen 2, Qwen 3)."""
    on, size = keys.flag("use_sliding_window", False), window_size(keys, "sliding_window", 4096)
    first = keys.count("max_window_layers", 28)
    return by_layer_types(keys, layers, size if on else None, [i >= first for i in range(layers)])


def even_below_max_window_layers(keys: ConfigKeys, layers: int) -> Sequence[int | None]:
    """With `use_sliding_window`: every second of the first `max_window_layers` layers (Qwen2-MoE)."""
    on, size = keys.flag("use_sliding_window", False), window_size(keys, "sliding_window", 4096)
    last = keys.count("max_window_layers", 28)
    return by_layer_types(keys, layers, size if on else None, [i % 2 == 0 and i < last for i in range(layers)])


def every_layer_if_switched_on(keys: ConfigKeys, layers: int) -> Sequence[int | None]:
    """With `use_sliding_window`: all layers (Qwen3-MoE)."""
    keys.ignore("max_window_layers", "layer_types")
    on, size = keys.flag("use_sliding_window", False), window_size(keys, "sliding_window", 4096)
    return [size if on else None] * layers


def without_rotary(keys: ConfigKeys, layers: int) -> Sequence[int | None]:
    """With `use_sliding_window`: the layers without rotary positions (SmolLM3)."""
    keys.ignore("max_window_layers")
    on, size = keys.flag("use_sliding_window", False), window_size(keys, "sliding_window", None)
    rotary = rotary_layers(keys, layers)
    return by_layer_types(keys, layers, size if on else None, [not r for r in rotary])


def rotary_layers(keys: ConfigKeys, layers: int) -> list[bool]:
    """Layers with rotary positions: all but every `no_rope_layer_interval`-th (SmolLM3, Llama 4)."""
    interval = keys.size("no_rope_layer_interval", 4)
    listed = keys.integers("no_rope_layers")
    if not listed:
        return [bool((i + 1) % interval) for i in range(layers)]
    if len(listed) < layers:
        raise keys.error("no_rope_layers", "wrong_length", f"no_rope_layers needs {layers} entries, not {len(listed)}")
    return [bool(flag) for flag in listed[:layers]]


def window_size(keys: ConfigKeys, key: str, default: int | None) -> int | None:
    """Tokens in a window; null or 0 (as Qwen2-MoE is saved without one): no window."""
    if keys.value(key, default) is None:
        return None
    return keys.count(key, default or 0) or None


def by_layer_types(keys: ConfigKeys, layers: int, window: int | None, default: Sequence[bool]) -> Sequence[int | None]:
    """The window where `layer_types` (left out: `default`) says so."""
    listed = keys.value("layer_types", None)
    if listed is None:
        return [window if windowed else None for windowed in default]
    if not isinstance(listed, list | tuple) or len(listed) != layers:
        raise keys.error("layer_types", "wrong_length", f"layer_types must be a list of {layers} names")
    for name in listed:
        if name not in LAYER_TYPES:
            raise keys.unsupported("layer_types", "unsupported_value", f"layer type {name!r} is not known")
    return [window if name in WINDOWED else None for name in listed]
