"""Keys of the settings files of open_clip, timm and sentence-transformers, with their rules.

See `settings_file`.
"""

from big_retrieval.interop.hugging_face_keys import COMMON, CONFIGS, PREPROCESSOR, TOKENIZER
from big_retrieval.interop.settings_file import (
    ARRAYS,
    INFO,
    OFF,
    OTHER_TASK,
    OUTPUT,
    Keys,
    harmless,
    only,
    use,
)

_CUSTOM_BLOCKS: Keys = {
    "ls_init_value": only(None, reason="no layer scale"),
    "block_type": only(None, "default"),
    "qk_norm": only(False),
    "scaled_cosine_attn": only(False),
    "scale_heads": only(False),
    "scale_attn_inner": only(False),
    "scale_attn": only(False),
    "scale_fc": only(False),
    "act_kwargs": only(None, {}),
    "norm_kwargs": {"eps": use("epsilon of norms")},
    "final_ln_after_pool": only(False),
    "output_tokens": OUTPUT,
    "mlp_ratio": ARRAYS,
    "layers": use("must agree with the arrays"),
    "width": ARRAYS,
}
OPEN_CLIP: Keys = {
    "model_cfg": {
        "embed_dim": ARRAYS,
        "quick_gelu": use("activation"),
        "custom_text": harmless("names of arrays, which both forms have"),
        "init_logit_scale": OFF,
        "init_logit_bias": only(None, reason="no bias of scores (SigLIP)"),
        "nonscalar_logit_scale": OUTPUT,
        "cast_dtype": only(None, "fp32"),
        "output_dict": OUTPUT,
        "multimodal_cfg": only(None, reason="no decoder of captions (CoCa)"),
        "vision_cfg": {
            **_CUSTOM_BLOCKS,
            "width": use("heads of images: width / head_width"),
            "head_width": use("heads of images: width / head_width"),
            "patch_size": ARRAYS,
            "image_size": use("size of images in pixels"),
            "patch_dropout": OFF,
            "attentional_pool": only(False),
            "attn_pooler_queries": harmless("only of attentional_pool"),
            "attn_pooler_heads": harmless("only of attentional_pool"),
            "no_ln_pre": use("must agree with the arrays"),
            "pos_embed_type": only("learnable", "sin_cos_2d", reason="the arrays have the table"),
            "pool_type": use("tok: class token; avg: mean of patches"),
            "timm_model_name": only(None, "", reason="no tower of timm"),
            "timm_model_pretrained": harmless("only of timm_model_name"),
            "timm_pool": harmless("only of timm_model_name"),
            "timm_proj": harmless("only of timm_model_name"),
            "timm_proj_bias": harmless("only of timm_model_name"),
            "timm_drop": harmless("only of timm_model_name"),
            "timm_drop_path": harmless("only of timm_model_name"),
        },
        "text_cfg": {
            **_CUSTOM_BLOCKS,
            "context_length": use("tokens of a text"),
            "vocab_size": ARRAYS,
            "heads": use("heads of texts"),
            "hf_tokenizer_name": harmless("the folder's tokenizer is used, or --tokenizer"),
            "tokenizer_mode": only(None),
            "tokenizer_kwargs": only(None, {}),
            "embed_cls": only(False),
            "pad_id": harmless("padding follows the pooled position and is not seen by it"),
            "eos_id": use("pool_type eos: id of the pooled position"),
            "no_causal_mask": only(False),
            "pool_type": use("argmax: at the largest id; eos: at eos_id"),
            "proj_bias": only(False),
            "proj_type": use("linear; none"),
            "hf_model_name": use("BERT or RoBERTa inside of open_clip"),
            "hf_model_pretrained": harmless("the arrays of the folder are read"),
            "hf_proj_type": harmless("the arrays have the projection"),
            "hf_pooler_type": use("mean_pooler"),
            "pooler_type": use("older name of hf_pooler_type"),
            "proj": harmless("older name of hf_proj_type"),
        },
    },
    "preprocess_cfg": {
        "size": use("size of images; must agree with image_size"),
        "mode": only("RGB"),
        "mean": use("mean of each channel"),
        "std": use("deviation of each channel"),
        "interpolation": use("bicubic; bilinear"),
        "resize_mode": use("shortest: short side, then the central square; squash: both sides"),
        "fill_color": harmless("only of resize_mode longest"),
    },
}

TIMM: Keys = {
    "architecture": use("epsilon and activation"),
    "num_classes": OTHER_TASK,
    "num_features": ARRAYS,
    "global_pool": use("token for ViTs, avg for ResNets"),
    "model_args": only(None, {}),
    "label_names": INFO,
    "label_descriptions": INFO,
    "pretrained_cfg": {
        "input_size": use("size of images in pixels"),
        "crop_pct": use("share of the short side that the central square has; 0.875 by default"),
        "crop_mode": use("center; squash"),
        "interpolation": use("bicubic; bilinear"),
        "mean": use("mean of each channel"),
        "std": use("deviation of each channel"),
        "test_input_size": harmless("only used on request"),
        "test_crop_pct": harmless("only used on request"),
        "fixed_input_size": harmless("the size stays as it is"),
        "min_input_size": harmless("the size stays as it is"),
        "pool_size": OTHER_TASK,
        "num_classes": OTHER_TASK,
        "label_offset": OTHER_TASK,
        "label_names": INFO,
        "label_descriptions": INFO,
        "classifier": OTHER_TASK,
        "first_conv": INFO,
        "custom_load": harmless("layout of other files of the same model"),
        "state_dict": INFO,
        **dict.fromkeys(
            (
                "tag", "url", "file", "source", "hf_hub_id", "hf_hub_filename", "license",
                "origin_url", "paper_name", "paper_ids", "notes", "architecture", "description",
            ),
            INFO,
        ),
    },
}  # fmt: skip

MODULE: Keys = {
    "idx": harmless("modules follow the order of the list"),
    "name": INFO,
    "path": use("folder of the module"),
    "type": use("class of the module"),
    "kwargs": only(None, []),
}
_NO_POOLER = only(None, {}, {"add_pooling_layer": False})
SENTENCE_BERT: Keys = {
    "max_seq_length": use("tokens of a text"),
    "do_lower_case": use("refused if the tokenizer keeps upper case"),
    "transformer_task": use("feature-extraction; fill-mask before SpladePooling"),
    "modality_config": {
        "text": {
            "method": only("forward"),
            "method_output_name": only("last_hidden_state", "logits"),
        }
    },
    "module_output_name": only("token_embeddings"),
    "model_args": _NO_POOLER,
    "tokenizer_args": only(None, {}),
    "config_args": only(None, {}),
    "model_kwargs": _NO_POOLER,
    "processor_kwargs": only(None, {}),
    "processing_kwargs": only(None, {}),
    "config_kwargs": only(None, {}),
    "tokenizer_name_or_path": only(None),
    "unpad_inputs": OUTPUT,
}
SENTENCE_TRANSFORMERS: Keys = {
    "__version__": INFO,
    "model_type": INFO,
    "prompts": use("texts that are put before queries or documents"),
    "default_prompt_name": use("the prompt that is put before every text"),
    "similarity_fn_name": use("cosine; dot"),
    "truncate_dim": use("dimensions of an embedding that are kept, the first ones"),
    "max_active_dims": use("terms of a sparse embedding that are kept, the largest ones"),
}
POOLING: Keys = {
    "word_embedding_dimension": ARRAYS,
    "embedding_dimension": ARRAYS,
    "pooling_mode": use("cls; mean; lasttoken"),
    **dict.fromkeys(
        (
            "pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens",
            "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens",
            "pooling_mode_lasttoken",
        ),
        use("one of cls_token, mean_tokens and lasttoken is true"),
    ),
    "include_prompt": use("false: refused if the model has prompts"),
}  # fmt: skip
DENSE: Keys = {
    "in_features": ARRAYS,
    "out_features": ARRAYS,
    "bias": ARRAYS,
    "activation_function": use("only the identity"),
    "module_input_name": only("sentence_embedding"),
    "module_output_name": only("sentence_embedding", None),
    "use_residual": only(False),
}
LAYER_NORM: Keys = {"dimension": ARRAYS}
NORMALIZE: Keys = {
    "module_input_name": only("sentence_embedding"),
    "module_output_name": only("sentence_embedding", None),
}
SPLADE: Keys = {
    "pooling_strategy": use("max"),
    "activation_function": use("relu; log1p_relu"),
    "word_embedding_dimension": ARRAYS,
    "embedding_dimension": ARRAYS,
    "chunk_size": OUTPUT,
}

FILES: dict[str, Keys] = {  # all files that importers read, for the documentation
    "open_clip_config.json": OPEN_CLIP,
    "config.json of timm": TIMM,
    "config.json of transformers, all architectures": COMMON,
    **{
        f"config.json of {', '.join(name for name, keys in CONFIGS.items() if keys is part)}": {
            key: rule for key, rule in part.items() if rule is not COMMON.get(key)
        }
        for part in CONFIGS.values()
    },
    "preprocessor_config.json, processor_config.json": PREPROCESSOR,
    "tokenizer_config.json": TOKENIZER,
    "modules.json": MODULE,
    "config_sentence_transformers.json": SENTENCE_TRANSFORMERS,
    "sentence_bert_config.json": SENTENCE_BERT,
    "Pooling/config.json": POOLING,
    "Dense/config.json": DENSE,
    "LayerNorm/config.json": LAYER_NORM,
    "Normalize/config.json": NORMALIZE,
    "SpladePooling/config.json": SPLADE,
}
