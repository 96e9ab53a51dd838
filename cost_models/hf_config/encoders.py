"""BERT, RoBERTa and ViT: encoders that see the whole sequence."""

from __future__ import annotations

from cost_models.architecture import Block, Linear, ModelArchitecture
from cost_models.block_builders import AttentionExtras, Heads, Trunk, assemble, attention, feed_forward
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import divided_head_dim


def read_bert(keys: ConfigKeys) -> ModelArchitecture:
    """BertForMaskedLM."""
    return _masked_lm(keys, vocab=30522)


def read_roberta(keys: ConfigKeys) -> ModelArchitecture:
    """RobertaForMaskedLM: the same weights in other places."""
    return _masked_lm(keys, vocab=50265)


def _masked_lm(keys: ConfigKeys, *, vocab: int) -> ModelArchitecture:
    keys.ignore(
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type",
    )  # fmt: skip
    keys.fixed("position_embedding_type", "absolute")
    keys.fixed("add_cross_attention", False)
    hidden = keys.size("hidden_size", 768)
    vocab = keys.size("vocab_size", vocab)
    positions = keys.size("max_position_embeddings", 512)
    tied = keys.flag("tie_word_embeddings", True)
    norm = 2 * hidden
    block = _encoder_block(keys, hidden, qkv_bias=True)
    return assemble(
        Trunk(
            name=keys.model_type,
            model_type=keys.model_type,
            hidden=hidden,
            vocab=vocab,
            tied=tied,
            head=Linear("head", hidden, vocab, True, "column"),
            norm="layernorm",
            positions="learned",
            max_position_embeddings=positions,
            position_parameters=positions * hidden,
            input_parameters=keys.size("type_vocab_size", 2) * hidden + norm,
            final_norm_parameters=0,
            # The head's transform (dense and norm) and its bias, which an untied decoder has besides its own.
            output_parameters=hidden * hidden + hidden + norm + vocab,
            assumptions=keys.assumptions,
        ),
        [block] * keys.layers("num_hidden_layers", 12),
    )


def _encoder_block(keys: ConfigKeys, hidden: int, *, qkv_bias: bool) -> Block:
    heads = keys.size("num_attention_heads", 12)
    dim = divided_head_dim(keys, hidden, heads)
    width = keys.size("intermediate_size", 3072)
    return Block(
        attention=attention(
            hidden, Heads(heads, heads, dim), qkv_bias=qkv_bias, out_bias=True, extras=AttentionExtras(causal=False)
        ),
        feed_forward=feed_forward(
            hidden, width, gated=False, activation=keys.activation("hidden_act", "gelu"), bias=True
        ),
        norms=2,
        norm_parameters=4 * hidden,
        encoder=True,
    )


def read_vit(keys: ConfigKeys) -> ModelArchitecture:
    """ViTForImageClassification with the config's labels."""
    keys.ignore("encoder_stride", "pooler_act", "pooler_output_size")
    hidden = keys.size("hidden_size", 768)
    (height, width), (patch_height, patch_width) = _sides(keys, "image_size", 224), _sides(keys, "patch_size", 16)
    channels = keys.size("num_channels", 3)
    tokens = (height // patch_height) * (width // patch_width) + 1
    labels = _labels(keys)
    block = _encoder_block(keys, hidden, qkv_bias=keys.flag("qkv_bias", True))
    return assemble(
        Trunk(
            name="vit",
            model_type="vit",
            hidden=hidden,
            vocab=labels,
            tied=False,
            head=Linear("head", hidden, labels, True),
            norm="layernorm",
            positions="learned",
            max_position_embeddings=tokens,
            embedding_parameters=(channels * patch_height * patch_width + 1) * hidden,
            position_parameters=tokens * hidden,
            input_parameters=hidden,
            final_norm_parameters=2 * hidden,
            sequence_length=tokens,
            assumptions=keys.assumptions,
        ),
        [block] * keys.layers("num_hidden_layers", 12),
    )


def _sides(keys: ConfigKeys, key: str, default: int) -> tuple[int, int]:
    """Height and width; one number means a square."""
    if isinstance(keys.fields.get(key), list | tuple):
        sides = keys.integers(key) or ()
        if len(sides) != 2 or not all(sides):
            raise keys.error(key, "wrong_length", f"{key} must be a positive integer or two of them")
        return sides[0], sides[1]
    side = keys.size(key, default)
    return side, side


def _labels(keys: ConfigKeys) -> int:
    labels = keys.fields.get("id2label")
    if keys.fields.get("num_labels") is None and isinstance(labels, dict):
        return keys.size("id2label", 2) if not labels else len(labels)
    return keys.size("num_labels", 2)
