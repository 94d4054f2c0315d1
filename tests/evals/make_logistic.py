"""Writes logistic.json with scikit-learn: `python -m tests.evals.make_logistic`.

For each penalty: accuracy and mean cross entropy of the training and of the test rows.
"""

import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("logistic.json")
PENALTIES = (0.1, 1.0, 100.0)
TRAIN, TEST, FEATURES, CLASSES = 203, 101, 12, 7


def drawn() -> tuple[np.ndarray, np.ndarray]:
    """Features [n, D] and classes [n] of the training rows, then of the test rows."""
    rng = np.random.default_rng(5)
    labels = rng.integers(CLASSES, size=TRAIN + TEST)
    middles = rng.normal(size=(CLASSES, FEATURES))
    noise = rng.normal(size=(len(labels), FEATURES))
    sizes = np.geomspace(0.3, 3, FEATURES)
    return ((middles[labels] + 1.3 * noise) * sizes).astype(np.float32), labels


def main() -> None:
    import sklearn
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    x, labels = drawn()
    parts = {"train": slice(0, TRAIN), "test": slice(TRAIN, None)}
    found: dict = {"scikit-learn": sklearn.__version__}
    for l2 in PENALTIES:
        model = LogisticRegression(C=1 / l2, tol=1e-9, max_iter=100_000)
        model.fit(x[parts["train"]].astype(np.float64), labels[parts["train"]])
        numbers = {}
        for name, rows in parts.items():
            chances = model.predict_proba(x[rows].astype(np.float64))
            numbers[f"{name}_accuracy"] = float(np.mean(chances.argmax(axis=1) == labels[rows]))
            numbers[f"{name}_loss"] = float(log_loss(labels[rows], chances))
        found[f"{l2:g}"] = numbers
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
