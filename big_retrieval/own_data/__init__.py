"""Training on data as they lie there: what they are, what is trained on them, and the config."""
