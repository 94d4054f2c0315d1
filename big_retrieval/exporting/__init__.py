"""Trained models as folders that other libraries open, with a certificate.

`TARGETS` has the names of the libraries, without importing the modules that write their folders.
"""

# --to -> the class that writes the folder, in a module of this package.
TARGETS = {
    "open_clip": "open_clip:OpenClip",
    "transformers": "hugging_face:Transformers",
    "sentence-transformers": "sentence_transformers:SentenceTransformers",
    "torch": "torch:Torch",
    "onnx": "onnx:Onnx",
}
