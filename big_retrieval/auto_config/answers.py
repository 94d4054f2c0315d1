"""Config of questions with answers: one text encoder for both sides."""

from big_retrieval.auto_config.machine import MANY_CORES, Machine
from big_retrieval.auto_config.tasks import (
    TrainingTask,
    comment,
    data_section,
    entry,
    literal,
    pretrained_config,
    run_section,
)

METRICS = ("nDCG@10", "MRR@10", "R@100")  # of judged queries, as in BEIR's papers


def answers_config(task: TrainingTask, machine: Machine) -> list[str]:
    """Returns the sections of the config."""
    roles = task.roles
    query = task.length(roles["query"], 32 if machine.is_small else 64)
    answer = task.length(roles["document"], 64 if machine.is_small else 256)
    run, model, head = (_random if task.init is None else _published_sections)(task, machine)
    title = f"\n    title={literal(roles['title'])}," if roles["title"] else ""
    model += f"""
c.fields.query = recipe.entry(
    config.TextField(),
    column={literal(roles["query"])},
    length={query},
    tower="text",
    head={head},
)
c.fields.answer = recipe.entry(
    config.TextField(),
    column={literal(roles["document"])},{title}
    length={answer},
    side="document",
    tower="text",
    head={head},
    shares_head="query",
)
"""
    if roles["negative"]:
        model += f"c.negatives.update(count=1, column={literal(roles['negative'])})\n"
    evaluators = {
        name: f"recipe.entry(config.Ranking(), metrics={literal(METRICS)})"
        if source.graded
        else 'recipe.entry(config.Retrieval(), query="query", document="answer")'
        for name, source in task.sources.items()
        if name != "train"
    }
    comments = (
        task.cut("query", roles["query"], query),
        task.cut("answer", roles["document"], answer),
    )
    return [run, model, data_section(task, evaluators, comments)]


def _best(task: TrainingTask) -> str:
    is_judged = task.sources["validation"].graded
    return f"ranking/validation/{METRICS[0]}" if is_judged else "retrieval/validation/R-mean"


def _random(task: TrainingTask, machine: Machine) -> tuple[str, str, str]:
    width, depth = (64, 2) if machine.is_small and machine.cores < MANY_CORES else (256, 4)
    run = run_section(
        task, machine, batch=64 if machine.is_small else machine.batch, epochs=20,
        steps=(200, 1500), lr=1e-3, weight_decay=0.05, best_metric=_best(task),
    )  # fmt: skip
    reason = (
        f"From random weights, as this machine has no published ones ({machine}): --init=FOLDER of "
        "a sentence-transformers model gives far better results."
    )
    model = f"""
# Model
{comment(reason)}
c.towers.text = recipe.entry(
    config.Bert(),
    width={width},
    depth={depth},
    heads={width // 32},
    mlp={4 * width},
    pool="mean",
    embedding_std=0.5,
)"""
    return run, model, f"config.Projection(dim={width})"


def _published_sections(task: TrainingTask, machine: Machine) -> tuple[str, str, str]:
    weights = pretrained_config(str(task.init), ("text",))
    head = next(field.head for field in weights.fields.values() if field.tower == "text")
    max_steps = 150 * max(1, machine.cores // 2) if machine.is_small else 20_000
    run = run_section(
        task, machine, batch=32 if machine.is_small else machine.batch // 4, epochs=3,
        steps=(50, max_steps), lr=2e-5, weight_decay=0.01, warmup=10, best_metric=_best(task),
    )  # fmt: skip
    has_head = getattr(head, "dim", None) is not None
    model = f"""
# Model
{comment(f"From the published weights in {task.init}, which are on this machine.")}
c.towers.text = {entry(weights.towers["text"])}
c.init.text = recipe.entry(config.Init(), path={literal(str(task.init))}, head={has_head})
c.tokenizer = {entry(weights.tokenizer)}
c.topology = "sphere"
c.optimizer.schedule.type = "linear"
c.losses.main.logit_scale.init = 20.0"""
    return run, model, literal(head)
