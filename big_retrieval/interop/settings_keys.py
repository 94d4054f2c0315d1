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
    same,
    use,
)

_CUSTOM_BLOCKS: Keys = {
    "ls_init_value": only(None, reason="no layer scale"),
    "block_type": only(None, "default"),
    "act_kwargs": only(None, {}),
    "norm_kwargs": {"eps": use("epsilon of norms")},
    "output_tokens": OUTPUT,
    "layers": use("must agree with the arrays"),
    **same(ARRAYS, "mlp_ratio width"),
    **same(
        only(False),
        "qk_norm scaled_cosine_attn scale_heads scale_attn_inner scale_attn scale_fc "
        "final_ln_after_pool",
    ),
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
            **same(use("heads of images: width / head_width"), "width head_width"),
            "patch_size": ARRAYS,
            "image_size": use("size of images in pixels"),
            "patch_dropout": OFF,
            "attentional_pool": only(False),
            **same(harmless("only of attentional_pool"), "attn_pooler_queries attn_pooler_heads"),
            "no_ln_pre": use("must agree with the arrays"),
            "pos_embed_type": only("learnable", "sin_cos_2d", reason="the arrays have the table"),
            "pool_type": use("tok: class token; avg: mean of patches"),
            "timm_model_name": only(None, "", reason="no tower of timm"),
            **same(
                harmless("only of timm_model_name"),
                "timm_model_pretrained timm_pool timm_proj timm_proj_bias timm_drop timm_drop_path",
            ),
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
        **same(use("of each channel"), "mean std"),
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
    **same(INFO, "label_names label_descriptions"),
    "pretrained_cfg": {
        "input_size": use("size of images in pixels"),
        "crop_pct": use("central square / short side; 0.875 by default"),
        "crop_mode": use("center; squash"),
        "interpolation": use("bicubic; bilinear"),
        **same(use("of each channel"), "mean std"),
        "custom_load": harmless("layout of other files of the same model"),
        **same(harmless("only used on request"), "test_input_size test_crop_pct"),
        **same(harmless("the size stays as it is"), "fixed_input_size min_input_size"),
        **same(OTHER_TASK, "pool_size num_classes label_offset classifier"),
        **same(
            INFO,
            "label_names label_descriptions first_conv state_dict tag url file source hf_hub_id "
            "hf_hub_filename license origin_url paper_name paper_ids notes architecture "
            "description",
        ),
    },
}

MODULE: Keys = {
    "idx": harmless("modules follow the order of the list"),
    "name": INFO,
    "path": use("folder of the module"),
    "type": use("class of the module"),
    "kwargs": only(None, []),
}
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
    "tokenizer_name_or_path": only(None),
    "unpad_inputs": OUTPUT,
    **same(only(None, {}, {"add_pooling_layer": False}), "model_args model_kwargs"),
    **same(
        only(None, {}),
        "tokenizer_args config_args processor_kwargs processing_kwargs config_kwargs",
    ),
}
SENTENCE_TRANSFORMERS: Keys = {
    **same(INFO, "__version__ model_type"),
    "prompts": use("texts before queries or documents"),
    "default_prompt_name": use("prompt before every text"),
    "similarity_fn_name": use("cosine; dot"),
    "truncate_dim": only(None, reason="cut the embeddings after encoding instead"),
    "max_active_dims": use("number of terms that a sparse embedding keeps, the largest ones"),
}
POOLING: Keys = {
    **same(ARRAYS, "word_embedding_dimension embedding_dimension"),
    "pooling_mode": use("cls; mean; lasttoken"),
    **same(
        use("one of cls_token, mean_tokens and lasttoken is true"),
        "pooling_mode_cls_token pooling_mode_mean_tokens pooling_mode_max_tokens "
        "pooling_mode_mean_sqrt_len_tokens pooling_mode_weightedmean_tokens "
        "pooling_mode_lasttoken",
    ),
    "include_prompt": use("false: refused if the model has prompts"),
}
DENSE: Keys = {
    **same(ARRAYS, "in_features out_features bias"),
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
    **same(ARRAYS, "word_embedding_dimension embedding_dimension"),
    "chunk_size": OUTPUT,
}

FILES: dict[str, Keys] = {  # all files that importers read, for the documentation
    "open_clip_config.json": OPEN_CLIP,
    "config.json of timm": TIMM,
    "config.json of transformers, all architectures": COMMON,
    **{
        f"config.json of {', '.join(name for name, keys in CONFIGS.items() if keys is settings)}": {
            key: rule for key, rule in settings.items() if rule is not COMMON.get(key)
        }
        for settings in CONFIGS.values()
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
