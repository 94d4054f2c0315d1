"""Stores: the rows of users' files, read once and kept as memory-mapped Arrow parts."""
