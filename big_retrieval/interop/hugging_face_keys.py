"""Keys of the settings files of transformers, with the rule for each; see `settings_file`."""

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

PREPROCESSOR: Keys = {
    "image_processor_type": use("defaults of the keys below"),
    "feature_extractor_type": use("older name of image_processor_type"),
    "size": use("a number, height and width, or shortest_edge"),
    "resample": use("2: bilinear; 3: bicubic"),
    "do_center_crop": use("true: the central square is cut"),
    "crop_size": use("size of the central square"),
    "crop_pct": use("ConvNext: central square / short side"),
    **same(use("must be true"), "do_resize do_rescale"),
    "rescale_factor": use("must be 1 / 255"),
    "do_normalize": use("false: mean 0, deviation 1"),
    **same(use("of each channel"), "image_mean image_std"),
    "do_convert_rgb": harmless("images are always converted to RGB"),
    "default_to_square": use("meaning of a size that is a number"),
    "do_pad": only(None, False),
    "use_square_size": only(False),
    **same(only(None), "pad_size input_data_format"),
    "image_seq_length": harmless("only of models that write text"),
    **same(OUTPUT, "data_format device disable_grouping return_tensors"),
    **same(
        INFO,
        "processor_class _processor_class _valid_processor_keys backend is_local local_files_only",
    ),
}
PROCESSOR: Keys = {
    "image_processor": PREPROCESSOR,
    "feature_extractor": PREPROCESSOR,
    "processor_class": INFO,
    "tokenizer": harmless("tokenizer_config.json has it"),
}

COMMON: Keys = {
    "model_type": use("architecture"),
    "tie_word_embeddings": harmless("the arrays have both tables if they differ"),
    "tie_encoder_decoder": harmless("no decoder"),
    "pruned_heads": only(None, {}),
    "cross_attention_hidden_size": only(None),
    **same(only(False), "is_decoder is_encoder_decoder add_cross_attention"),
    "big_retrieval": use("pooling and normalization of an export of this package"),
    **same(harmless("arrays are computed in float32"), "torch_dtype dtype"),
    **same(harmless("the tokenizer has it"), "bos_token_id sep_token_id"),
    **same(OFF, "gradient_checkpointing initializer_range initializer_factor"),
    **same(
        INFO,
        "architectures _name_or_path transformers_version tokenizer_class language name model_name "
        "_commit_hash",
    ),
    **same(
        OUTPUT,
        "attn_implementation _attn_implementation _attn_implementation_autoset "
        "chunk_size_feed_forward output_hidden_states output_attentions return_dict torchscript "
        "use_bfloat16",
    ),
    **same(
        OTHER_TASK,
        "max_length min_length do_sample early_stopping num_beams num_beam_groups "
        "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty "
        "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences "
        "output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id "
        "remove_invalid_values exponential_decay_length_penalty suppress_tokens "
        "begin_suppress_tokens decoder_start_token_id prefix task_specific_params use_cache "
        "output_past xla_device finetuning_task id2label label2id num_labels _num_labels "
        "problem_type tf_legacy_loss",
    ),
}
_ENCODER: Keys = {
    **COMMON,
    "num_attention_heads": use("heads"),
    "hidden_act": use("activation"),
    "layer_norm_eps": use("epsilon of norms"),
    "num_hidden_layers": use("must agree with the arrays"),
    **same(ARRAYS, "hidden_size intermediate_size"),
    **same(OFF, "hidden_dropout_prob attention_probs_dropout_prob attention_dropout dropout"),
}
_TEXT: Keys = {
    **_ENCODER,
    "position_embedding_type": only(None, "absolute"),
    "pad_token_id": harmless("padding is not seen"),
    "eos_token_id": harmless("the tokenizer has it"),
    **same(ARRAYS, "vocab_size max_position_embeddings type_vocab_size"),
    **same(OFF, "classifier_dropout gradient_checkpointing"),
    **same(
        harmless("only of BERT's pooler, which is not read"),
        "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
        "pooler_type directionality pooler_dropout",
    ),
}
_PIXELS: Keys = {
    "image_size": use("size of images in pixels"),
    "patch_size": ARRAYS,
    "num_channels": only(3),
}
_CLIP_COMMON: Keys = {
    **_ENCODER,
    "projection_dim": ARRAYS,
    "logit_scale_init_value": OFF,
}
CLIP_TEXT: Keys = {
    **_CLIP_COMMON,
    **{k: _TEXT[k] for k in ("vocab_size", "max_position_embeddings", "pad_token_id")},
    "eos_token_id": use("id of the pooled position; 2: the largest id"),
}
CLIP_IMAGE: Keys = {**_CLIP_COMMON, **_PIXELS}
_OF_DISTILBERT = (
    "vocab_size max_position_embeddings pad_token_id eos_token_id dropout attention_dropout "
    "position_embedding_type"
)
CONFIGS: dict[str, Keys] = {  # model_type -> keys of config.json
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), _TEXT),
    "mpnet": {**_TEXT, "relative_attention_num_buckets": only(32)},
    "distilbert": {
        **COMMON,
        **{key: _TEXT[key] for key in _OF_DISTILBERT.split()},
        "n_heads": use("heads"),
        "activation": use("activation"),
        "n_layers": use("must agree with the arrays"),
        "sinusoidal_pos_embds": harmless("the arrays have the table"),
        "tie_weights_": harmless("the arrays have both tables if they differ"),
        **same(ARRAYS, "dim hidden_dim"),
        **same(OFF, "qa_dropout seq_classif_dropout"),
    },
    "vit": {
        **_ENCODER,
        **_PIXELS,
        "qkv_bias": only(True),
        "encoder_stride": OTHER_TASK,
        **same(harmless("only of the pooler, which is not read"), "pooler_act pooler_output_size"),
    },
    "resnet": {
        **COMMON,
        "num_channels": only(3),
        "hidden_act": only("relu"),
        **same(only(False), "downsample_in_first_stage downsample_in_bottleneck"),
        **same(ARRAYS, "depths hidden_sizes embedding_size layer_type"),
        **same(OUTPUT, "out_features out_indices _out_features _out_indices"),
        "stage_names": INFO,
    },
    "clip_text_model": CLIP_TEXT,
    "clip_vision_model": CLIP_IMAGE,
    "clip": {
        **COMMON,
        "projection_dim": ARRAYS,
        "logit_scale_init_value": OFF,
        "text_config": CLIP_TEXT,
        "vision_config": CLIP_IMAGE,
        **same(use("older form of the tower's settings"), "text_config_dict vision_config_dict"),
    },
}

TOKENIZER: Keys = {
    "do_lower_case": use("lower-casing; must agree with tokenizer.json"),
    **same(use("must agree with the tokenizer's files"), "strip_accents tokenize_chinese_chars"),
    "do_basic_tokenize": only(True),
    "never_split": only(None, []),
    "model_max_length": use("tokens of a text"),
    "max_len": harmless("older name of model_max_length"),
    "truncation_side": only("right"),
    "padding_side": only("right", None),
    "truncation_strategy": harmless("one text is cut at its end by all strategies"),
    "truncation": harmless("texts are cut at the model's length"),
    "model_input_names": harmless("names of arrays"),
    "trim_offsets": harmless("only of positions of letters"),
    "wordpieces_prefix": only("##"),
    "add_special_tokens": only(True),
    "split_special_tokens": only(False),
    "sp_model_kwargs": only(None, {}),
    **same(harmless("only used on request"), "max_length stride"),
    **same(harmless("padding is not seen"), "pad_to_multiple_of pad_token_type_id padding"),
    **same(
        harmless("only for reading ids"),
        "clean_up_tokenization_spaces spaces_between_special_tokens errors",
    ),
    **same(
        harmless("tokenizer.json or vocab.txt has it"),
        "add_prefix_space added_tokens_decoder added_tokens additional_special_tokens "
        "extra_special_tokens special_tokens model_specific_special_tokens add_bos_token "
        "add_eos_token unk_id vocab_size bos_token eos_token cls_token sep_token pad_token "
        "unk_token mask_token pad_id",
    ),
    **same(
        INFO,
        "tokenizer_class processor_class name_or_path _name_or_path vocab_file merges_file "
        "tokenizer_file special_tokens_map_file full_tokenizer_file from_slow legacy use_fast "
        "backend is_local local_files_only tokenizer_version transformers_version device_map",
    ),
}
