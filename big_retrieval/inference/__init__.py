"""Using a trained model: loading a run or checkpoint, and encoding texts and images with it."""
