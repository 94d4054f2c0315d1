"""Judged pairs of queries and documents: relevance scores, splits, and the weights of the loss."""
