"""Ordinary and unusual run folders, written without training."""

import json
import math
from pathlib import Path
from typing import Any

from PIL import Image

from big_retrieval.report.thumbnails import data_uri

PICTURE = data_uri(Image.new("L", (1, 1), 128))
ATTACK = '<script>alert("x")</script>&amp;\u202e\x00\ud800'
WAYS = ("image_to_text", "text_to_image")
FIRST_START = {
    "time": "2026-01-01 00:00:00", "devices": 1, "device": "cpu", "processes": 1, "cores": 2,
    "command": "python", "platform": "Linux", "processor": "x86", "commit": "abc",
    "records": 100, "total_steps": 40, "resumed_from": None, "mesh": {"data": 1},
    "versions": {"jax": "0.10.2"}, "vocab_size": 132,
}  # fmt: skip
LAST_START = FIRST_START | {
    "time": "2026-01-02 00:00:00", "devices": 2, "processes": 2, "resumed_from": 20,
    "command": "python -m big_retrieval.main", "mesh": {"data": 2},
}  # fmt: skip
ENVIRONMENT = {"starts": [FIRST_START, LAST_START]}


def config(**changes: Any) -> dict[str, Any]:
    """The keys of a config.json that the report reads."""
    return {
        "batch_size": 16,
        "best_metric": "retrieval/test/image_to_text/R@1",
        "best_mode": "max",
        "data": {"type": "scenes", "split": "train", "size": 32, "count": None, "seed": 0},
        "evals": {"test": {"type": "retrieval", "data": {"type": "scenes", "split": "test"}}},
        "losses": {"main": {"type": "contrastive"}},
        "total_steps": 40,
        "topology": "oblique",
        "towers": {"image": {"type": "vit", "width": 64, "depth": 3}},
        **changes,
    }


def rows(steps: int = 40, shift: float = 0.0) -> list[dict[str, Any]]:
    """Rows of a metrics.jsonl, with an evaluation every ten steps."""
    out: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        rate = {"examples_per_second": 100.0 + step, "data_wait": 0.01, "records": "abc"}
        out.append({"step": step, "loss": 3 / step + shift, "learning_rate": 1e-3, **rate})
        if step % 10 == 0:
            out.append({"step": step, **recalls(step / 50 + shift)})
    return out


def recalls(value: float) -> dict[str, float]:
    """Metrics of one retrieval evaluator."""
    metrics = {}
    for way in WAYS:
        path = f"retrieval/test/{way}"
        metrics |= {f"{path}/R@{k}": min(1.0, value * (1 + k / 20)) for k in (1, 5, 10)}
        metrics |= {f"{path}/mean_rank": 5 - value, f"{path}/median_rank": 2.0}
    return metrics


def answer(text: str | None, score: float | None, right: bool, record: int = 0) -> dict[str, Any]:
    """An answer with a text, or with a picture if the text is None."""
    shown = {"picture": PICTURE, "size": [1, 1]} if text is None else {"text": text}
    return {"record": record, "score": score, "right": right, **shown}


def examples(text: str = "a red circle", *, other: str = "a blue square") -> dict[str, Any]:
    """An examples file of one evaluator, in both directions."""

    def example(query: dict[str, Any], answers: list[dict[str, Any]]) -> dict[str, Any]:
        right = {} if answers[0]["right"] else {"right": {**answers[0], "right": True}}
        rank = 1 if answers[0]["right"] else 7
        numbers = {"place": 5, "rank": rank, "right_answers": 2}
        return {**numbers, "query": query, "answers": answers, **right}

    image_query = {"record": 3, "picture": PICTURE, "id": text}
    text_query = {"record": 3, "text": text, "characters": 10_000}
    queries = image_query, text_query
    to_text = [answer(other, 0.9, False), answer(text, 0.5, True)]
    to_image = [answer(None, None, True), answer(None, -1.25, False)]
    return {
        "evaluator": "retrieval/test",
        "step": 40,
        "type": "retrieval",
        "directions": [
            {
                "name": way, "query": "q", "answer": "a", "queries": 50, "answers": 250,
                "failed": 20,
                "groups": [
                    {"name": "spread", "how": "evenly.", "examples": [example(query, answers)]},
                    {"name": "deepest", "how": "worst.", "examples": []},
                ],
            }
            for way, query, answers in zip(WAYS, queries, (to_text, to_image), strict=True)
        ],
    }  # fmt: skip


def confusions(classes: int = 3, name: str = "class") -> dict[str, Any]:
    """An examples file of a zero-shot evaluator."""
    return {
        "evaluator": "zeroshot/shapes", "step": 40, "type": "zeroshot", "images": 4 * classes,
        "failed": classes, "classes": [f"{name} {i}" for i in range(classes)],
        "images_of_class": [4] * classes, "right_of_class": [3] * classes,
        "confusions": [[i, (i + 1) % classes, 1] for i in range(classes)],
        "groups": [],
    }  # fmt: skip


def geometry() -> dict[str, Any]:
    """An examples file of `Geometry`: 30 pairs with small distances, and 870 others."""
    counts = {"positives": [20, 10, 0], "negatives": [70, 300, 500]}
    edges = [-4.0, -1.5, 1.0, 3.5]
    return {"evaluator": "geometry/near", "step": 40, "distances": {"edges": edges, **counts}}


def write(
    folder: Path,
    *,
    config: Any = None,
    metrics: list[dict[str, Any]] | None = None,
    results: Any = None,
    shown: list[dict[str, Any]] | None = None,
    **files: Any,
) -> Path:
    """Writes a run folder: rows of metrics.jsonl, example files (`shown`), and <name>.json."""
    (folder / "examples").mkdir(parents=True)
    for name, content in {"config": config, "results": results, **files}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    if metrics is not None:
        write_rows(folder / "metrics.jsonl", metrics)
    for index, content in enumerate(shown or []):
        (folder / "examples" / f"{index}.json").write_text(json.dumps(content))
    return folder


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ordinary(folder: Path, shift: float = 0.0, **changes: Any) -> Path:
    """A finished run."""
    logged = rows(shift=shift)
    last = {**logged[-2], **logged[-1]}
    done = {"steps": 40, "evaluated_step": 40, "seconds": 75.0, "resumed_from": None}
    done |= {"devices": 1, "parameter_count": 1234, "params_sha256": "0" * 64, **last}
    return write(
        folder,
        config=config(**changes),
        metrics=logged,
        results={k: v for k, v in done.items() if k != "step"},
        shown=[examples(), confusions(), geometry()],
        environment=ENVIRONMENT,
    )


def write_odd_run(folder: Path) -> Path:
    """A run with unusual names, texts and numbers."""
    logged: list[dict[str, Any]] = [
        {
            "step": step,
            "loss": [5.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 3.0][step % 7],
            "constant": 2.0,
            "flag": True,
            **{f"metric_{i}": math.sin(step + i) for i in range(250)},
            **{f"{'m' * 60}/{ATTACK}/{i:04}/{'x' * 20}": i * 1e-9 for i in range(40)},
        }
        for step in range(1, 500, 3)
    ]
    long = "ab " * 3333
    rtl = "שלום عالم 👩‍👩‍👧‍👦🏳️‍🌈 " * 8
    return write(
        folder,
        config=config(
            data={"type": "pairs", "path": ATTACK * 20, "new key": [1, {"a": None}]},
            best_metric="loss",
        ),
        metrics=logged,
        shown=[
            examples(ATTACK, other=rtl),
            {**examples(long), "evaluator": "retrieval/long"},
            confusions(2000, name=ATTACK),
        ],
    )
