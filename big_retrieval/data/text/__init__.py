"""Tokenizers, and how texts are cleaned for them."""
