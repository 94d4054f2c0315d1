"""An update rule of a user's own: defined in a config file, trained with, used without the file."""

import json
from pathlib import Path

import pytest

from big_retrieval.config import registry
from big_retrieval.config.foreign import Foreign
from big_retrieval.errors import UserError
from big_retrieval.inference.load import load
from tests.helpers import in_process, losses, results

pytestmark = pytest.mark.slow

FILE = '''
"""Signs of gradients as updates, from a user's own folder."""

from dataclasses import dataclass
from typing import Literal

from big_retrieval import config
from big_retrieval.config import recipe
from configs import quickstart


@config.register("optimizer")
@dataclass(frozen=True)
class Signs(config.UpdateRule):
    """Every number moves as far as the learning rate."""

    type: Literal["signs"] = "signs"
    scale: float = 1.0

    def check(self, config, path):
        """A scale is positive."""
        if self.scale <= 0:
            yield f"{path}.scale is {self.scale}; it must be positive."

    def build(self, context):
        """See `config.UpdateRule`."""
        import optax

        return optax.chain(optax.scale_by_sign(), optax.scale(self.scale))


def get_config(arg=""):
    """The quickstart, smaller."""
    c = quickstart.get_config("runlocal")
    c.unlock()
    c.optimizer.rule = recipe.entry(Signs())
    c.optimizer.groups.text = recipe.group("text/.*", rule=Signs(scale=0.5))
    c.optimizer.schedule.type, c.optimizer.schedule.warmup_steps = "constant", 0
    c.optimizer.update(lr=1e-3, weight_decay=0.0)
    return c
'''
FLAGS = [
    *["--config.total_steps=2", "--config.batch_size=16", "--config.data.count=100"],
    *["--config.log_every=1", "--config.report=False", "--config.evals={}"],
    *["--config.towers.image.depth=1", "--config.towers.text.depth=1"],
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps from a foreign folder."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_rule.py").write_text(FILE)
    done = train(folder, "--config.optimizer.rule.scale=2.0")
    assert done.returncode == 0, done.stderr
    return folder


def train(folder: Path, *flags: str):
    config = f"--config={folder / 'own_rule.py'}"
    return in_process("main", config, f"--workdir={folder / 'run'}", *FLAGS, *flags)


def test_custom_optimizer_trains_and_its_file_is_noted(run: Path) -> None:
    saved = json.loads((run / "run" / "config.json").read_text())
    assert saved["optimizer"]["rule"] == {"type": "signs", "scale": 2.0}
    assert saved["optimizer"]["groups"]["text"]["rule"] == {"type": "signs", "scale": 0.5}
    noted = saved["plugins"]["optimizer/signs"]
    assert noted["file"] == str((run / "own_rule.py").resolve())
    assert len(noted["sha256"]) == 64
    assert len(losses(run / "run")) == 2


def test_check_of_custom_optimizer_is_called(run: Path) -> None:
    done = train(run, "--config.optimizer.groups.text.rule.scale=-1.0")
    assert done.returncode == 2
    assert "config.optimizer.groups.text.rule.scale is -1.0; it must be positive" in done.stderr


def test_load_needs_no_file_of_custom_optimizer(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {k: x for k, x in registry._parts["optimizer"].items() if k != "signs"}
    monkeypatch.setitem(registry._parts, "optimizer", parts)
    model = load(run / "run")
    rule = model.config.optimizer.rule
    assert isinstance(rule, Foreign)
    assert rule.saved_form == {"type": "signs", "scale": 2.0}
    assert isinstance(model.config.optimizer.groups["text"].rule, Foreign)
    context = type("UpdateRuleContext", (), {"path": "config.optimizer.rule"})
    with pytest.raises(UserError, match=r"of the type 'signs', which .*own_rule\.py defines"):
        rule.build(context)  # type: ignore
    assert results(run / "run")["steps"] == 2
