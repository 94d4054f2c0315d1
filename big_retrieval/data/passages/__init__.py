"""Published text retrieval data: BEIR, DPR, MS MARCO triples, and collections of passages."""
