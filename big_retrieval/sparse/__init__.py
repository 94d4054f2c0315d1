"""Sparse lexical representations: their terms, gates, lists of terms, and sharded rows."""
