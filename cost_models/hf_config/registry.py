"""`model_type` to the function that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from cost_models.architecture import ModelArchitecture
from cost_models.errors import InvalidInput, UnsupportedModel
from cost_models.hf_config import decoder_families, expert_families
from cost_models.hf_config.alibi import read_bloom, read_mpt
from cost_models.hf_config.config_keys import LOC, ConfigKeys
from cost_models.hf_config.dbrx import read_dbrx
from cost_models.hf_config.decoder import read_decoder
from cost_models.hf_config.encoders import read_bert, read_roberta, read_vit
from cost_models.hf_config.falcon import read_falcon
from cost_models.hf_config.gpt2 import GPT2_NAMES, read_gpt2, read_gpt_bigcode, read_gptj
from cost_models.hf_config.gpt_neo import read_gpt_neo, read_gpt_neox
from cost_models.hf_config.latent import read_deepseek_v2, read_deepseek_v3
from cost_models.hf_config.llama4 import read_llama4_text
from cost_models.hf_config.opt import read_opt
from cost_models.hf_config.t5 import read_t5


@dataclass(frozen=True, slots=True)
class _Reader:
    read: Callable[[ConfigKeys], ModelArchitecture]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """transformers' attribute_map: other names of the same keys."""


_EXPERT_ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "mixtral": {"num_experts": "num_local_experts"},
    "gpt_oss": {"num_experts": "num_local_experts"},
    "olmoe": {"num_local_experts": "num_experts"},
    "qwen3_moe": {"num_local_experts": "num_experts"},
    "glm4_moe": {"num_local_experts": "n_routed_experts"},
}

_READERS: Final[Mapping[str, _Reader]] = {
    **{
        model_type: _Reader(partial(read_decoder, family), _EXPERT_ALIASES.get(model_type, {}))
        for model_type, family in {**decoder_families.FAMILIES, **expert_families.FAMILIES}.items()
    },
    "bert": _Reader(read_bert),
    "bloom": _Reader(
        read_bloom,
        {"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    ),
    "dbrx": _Reader(
        read_dbrx,
        {
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
            "max_position_embeddings": "max_seq_len",
        },
    ),
    "deepseek_v2": _Reader(read_deepseek_v2, {"num_experts": "n_routed_experts"}),
    "deepseek_v3": _Reader(read_deepseek_v3, {"num_local_experts": "n_routed_experts"}),
    "falcon": _Reader(read_falcon, {"n_embed": "hidden_size"}),
    "gpt2": _Reader(read_gpt2, GPT2_NAMES),
    "gpt_bigcode": _Reader(read_gpt_bigcode, GPT2_NAMES),
    "gpt_neo": _Reader(read_gpt_neo, {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}),
    "gpt_neox": _Reader(read_gpt_neox),
    "gptj": _Reader(read_gptj, GPT2_NAMES),
    "kimi_k2": _Reader(read_deepseek_v3, {"num_local_experts": "n_routed_experts"}),
    "llama4_text": _Reader(read_llama4_text),
    "mpt": _Reader(
        read_mpt,
        {"num_attention_heads": "n_heads", "hidden_size": "d_model", "num_hidden_layers": "n_layers"},
    ),
    "opt": _Reader(read_opt),
    "roberta": _Reader(read_roberta),
    "t5": _Reader(
        read_t5,
        {
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
    ),
    "vit": _Reader(read_vit),
}

MODEL_TYPES: Final = tuple(sorted(_READERS))
"""Every `model_type` that is understood."""

_CODE_OF: Final = {"kimi_k2": "deepseekv3"}
"""Types whose published configs name another type's classes in `auto_map`."""


def read_hf_config(config: Mapping[str, Any]) -> ModelArchitecture:
    """The model that a Hugging Face `config.json` describes, or a refusal that names the key."""
    model_type = config.get("model_type")
    if model_type is None:
        raise InvalidInput((*LOC, "model_type"), "missing", "model_type is required")
    if not isinstance(model_type, str) or model_type not in _READERS:
        message = f"model_type {model_type!r} is not understood; understood: {', '.join(MODEL_TYPES)}"
        raise UnsupportedModel((*LOC, "model_type"), "unknown_model_type", message)
    reader = _READERS[model_type]
    keys = ConfigKeys(config, model_type, reader.aliases)
    keys.fixed("pruned_heads", {}, None)
    keys.fixed("trust_remote_code", False)
    _refuse_remote_code(keys)
    model = reader.read(keys)
    keys.refuse_unknown()
    keys.assumptions += [
        f"hf_config.{key} {config[key]}: multi-token-prediction layers are neither counted nor priced"
        for key in ("num_nextn_predict_layers", "num_mtp_layers")
        if config.get(key)
    ]
    return replace(model, name=str(config.get("_name_or_path") or model_type), assumptions=tuple(keys.assumptions))


def _refuse_remote_code(keys: ConfigKeys) -> None:
    """`auto_map` is understood where its classes are the type's own, as the checkpoints published before transformers
    had the type carry them; any other class may be another model."""
    remote = keys.fields.get("auto_map")
    if not remote:
        return
    own = _CODE_OF.get(keys.model_type, keys.model_type.replace("_", ""))
    classes = remote.values() if isinstance(remote, Mapping) else [remote]
    for name in classes:
        names = name if isinstance(name, list) else [name]
        for path in names:
            if path is not None and not str(path).rsplit(".", 1)[-1].lower().startswith(own):
                message = f"auto_map names remote code {path!r} that is not {keys.model_type}'s own"
                raise keys.unsupported("auto_map", "remote_code", message)
    keys.assumptions.append(f"hf_config.auto_map ignored: read as {keys.model_type}")
