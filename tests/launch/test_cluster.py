"""launch/tpu_pod.sh and launch/slurm.sbatch, with fakes of gcloud, srun and scontrol."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.helpers import ROOT

POD = str(ROOT / "launch" / "tpu_pod.sh")
SLURM = str(ROOT / "launch" / "slurm.sbatch")
TPU = ["--name=pod", "--zone=moon-1a", "--project=mine"]
RUN = ["--config=configs/quickstart.py:m=4", "--workdir=/mnt/runs/a b", "--config.x='a'"]

Execute = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def execute(tmp_path: Path) -> Execute:
    """Runs a script with the fakes in `tmp_path/bin` first on the PATH."""
    (tmp_path / "bin").mkdir()

    def run(script: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        ours = ("SLURM", "JAX", "PYTHON", "MODULE", "DRY_RUN")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", script, *args], cwd=ROOT, capture_output=True, text=True, timeout=120,
            env={**clean, "PATH": path, "FAKE": str(tmp_path), **env},
        )  # fmt: skip

    return run


def fake(folder: Path, name: str, body: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/usr/bin/env bash\nset -eu\n{body}\n")
    path.chmod(0o755)


def commands(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The commands of a dry run, as bash reads them."""
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if re.match("gcloud|srun|export", line)]
    found = []
    for line in lines:
        words = ["bash", "-c", f"printf '%s\\0' {line}"]
        split = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        found.append(split.split("\0")[:-1])
    return found


@pytest.mark.parametrize("script", sorted((ROOT / "launch").iterdir()), ids=lambda p: p.name)
def test_bash_reads_script(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)


# ---- TPU


def test_pod_dry_run_calls_nothing(execute: Execute, tmp_path: Path) -> None:
    fake(tmp_path, "gcloud", 'echo called >>"$FAKE/called"')
    created = ["--accelerator=v5litepod-64", "--runtime=v2-alpha-tpuv5-lite", "--spot"]
    found = commands(execute(POD, *TPU, *created, "--dry-run", "--", *RUN))
    assert not (tmp_path / "called").exists()
    assert all({"--zone=moon-1a", "--project=mine"} <= set(c) for c in found if c[0] == "gcloud")
    assert found[0][:6] == ["gcloud", "compute", "tpus", "tpu-vm", "describe", "pod"]
    assert {"--accelerator-type=v5litepod-64", "--spot", "--node-id=pod"} <= set(found[2])
    assert "--worker=all" in found[-1]
    assert "launch/local.sh --processes=1 --restarts=100" in found[-1][-1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--zone=a", "--project=b", "--", "--workdir=c"], "Add --name"),
        ([*TPU, "--worker=3", "--", "--workdir=c"], "Unknown flag --worker=3"),
        ([*TPU, "--", "--config=c"], "Add --workdir=DIR after --"),
        ([*TPU, "--accelerator=v5litepod-8", "--", "--workdir=c"], "--accelerator needs --runtime"),
        ([*TPU, "--restarts=x", "--", "--workdir=c"], "--restarts is 'x'"),
    ],
)
def test_pod_rejects_flags(execute: Execute, args: list[str], words: str) -> None:
    done = execute(POD, *args)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr


GCLOUD = """
echo "$*" >>"$FAKE/calls"
case "$3 $4" in
  "tpu-vm describe")
    state=$(head -n 1 "$FAKE/states")
    [[ $(wc -l <"$FAKE/states") -lt 2 ]] || sed -i 1d "$FAKE/states"
    [[ $state != ERROR ]] || { echo "ERROR: no route to host" >&2; exit 1; }
    [[ $state != NONE ]] || { echo "ERROR: NOT_FOUND: no such TPU" >&2; exit 1; }
    echo "$state"
    ;;
  "tpu-vm ssh")
    for word in "$@"; do
      [[ $word != --command=* ]] || HOME="$FAKE/home" bash -c "${word#--command=}"
    done
    ;;
  "tpu-vm scp") cp "$5" "$FAKE/home/${6#*:}" ;;
esac
"""
# What runs on the workers: a python whose environments hold a pip and a python that take notes.
PYTHON = """
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho "$@" >>"$FAKE/pip"\\n' >"$3/bin/pip"
cp "$FAKE/bin/run" "$3/bin/python"
chmod +x "$3/bin/pip"
"""
CHILD = """
printf '%s\\n' "$@" >>"$FAKE/arguments"
echo "start" >>"$FAKE/starts"
echo "step 1/2"
[[ $(wc -l <"$FAKE/starts") -gt {hangs} ]] || sleep 60
echo "finished 2 steps"
exit {status}
"""
TMUX = """
if [[ $1 == kill-session ]]; then
  kill -- -$(cat "$FAKE/session" 2>/dev/null) 2>/dev/null || exit 1
else
  setsid "${@: -2:1}" -c "${@: -1}" >/dev/null 2>&1 &
  echo $! >"$FAKE/session"
fi
"""


@pytest.fixture
def pod(execute: Execute, tmp_path: Path) -> Execute:
    """tpu_pod.sh with a gcloud whose only worker is this machine."""

    def run(
        states: list[str], *flags: str, hangs: int = 0, status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "home").mkdir(exist_ok=True)
        (tmp_path / "states").write_text("\n".join(states) + "\n")
        fake(tmp_path, "gcloud", GCLOUD)
        fake(tmp_path, "python3.99", PYTHON)
        fake(tmp_path, "run", CHILD.format(hangs=hangs, status=status))
        fake(tmp_path, "tmux", TMUX.replace('"${@: -2:1}" -c', "bash -c"))
        return execute(POD, *TPU, "--python=python3.99", "--poll=0.2", *flags, "--", *RUN)

    return run


def test_pod_runs(pod: Execute, tmp_path: Path) -> None:
    done = pod(["CREATING", "READY"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["launch: pod is CREATING", "step 1/2", "finished 2 steps"]
    given = (tmp_path / "arguments").read_text().splitlines()
    assert given == ["-m", "big_retrieval.launch", "--processes=1", "--restarts=100", "--logs=logs",
                     "--", "--distributed", *RUN]  # fmt: skip
    code = tmp_path / "home" / "big_retrieval"
    assert (code / "big_retrieval" / "main.py").read_text() == (
        ROOT / "big_retrieval" / "main.py"
    ).read_text()
    assert not (code / ".git").exists()
    assert "--editable .[tpu]" in (tmp_path / "pip").read_text()


def test_pod_returns_status(
    pod: Execute,
) -> None:
    assert pod(["READY"], status=2).returncode == 2


@pytest.mark.slow
def test_preempted_pod_is_created_again(pod: Execute, tmp_path: Path) -> None:
    states = ["NONE", "CREATING", "READY", "READY", "ERROR", "PREEMPTED", "PREEMPTED", "READY"]
    flags = ["--accelerator=v5litepod-64", "--runtime=v2-alpha-tpuv5-lite"]
    done = pod(states, *flags, hangs=1)
    assert done.returncode == 0, done.stderr
    assert "no longer ready" in done.stdout
    assert done.stdout.splitlines()[-1] == "finished 2 steps"
    calls = (tmp_path / "calls").read_text()
    assert calls.count("queued-resources create pod") == 2
    assert (tmp_path / "starts").read_text().count("start") == 2


def test_unreachable_pod_is_not_deleted(pod: Execute, tmp_path: Path) -> None:
    done = pod(["ERROR", "ERROR", "READY"], "--accelerator=v5litepod-64", "--runtime=v2")
    assert done.returncode == 0
    assert "no route to host" in done.stderr
    assert "delete" not in (tmp_path / "calls").read_text()


def test_missing_pod_is_rejected(
    pod: Execute,
) -> None:
    done = pod(["NONE"])
    assert done.returncode == 2
    assert "TPU pod is MISSING in moon-1a" in done.stderr


# ---- SLURM


def dry(execute: Execute, *args: str, **env: str) -> list[list[str]]:
    return commands(execute(SLURM, "--", *args, DRY_RUN="1", PYTHON="python", **env))


def test_slurm_starts_one_process(execute: Execute) -> None:
    assert dry(execute, *RUN) == [
        ["srun", "--kill-on-bad-exit=1", "--output=/mnt/runs/a b/logs/process_%t.log",
         "--open-mode=append", "python", "-u", "-m", "big_retrieval", "train", *RUN]
    ]  # fmt: skip


@pytest.mark.parametrize(("per_node", "ids"), [("1", "0,1,2,3"), ("4", None)])
def test_slurm_assigns_gpus(execute: Execute, per_node: str, ids: str | None) -> None:
    variables = {"SLURM_NTASKS": str(2 * int(per_node)), "SLURM_NTASKS_PER_NODE": per_node}
    found = dry(execute, *RUN, SLURM_GPUS_ON_NODE="4", **variables)
    assert found[-1][-len(RUN) - 1 :] == ["--distributed", *RUN]
    expected = [] if ids is None else [["export", f"JAX_LOCAL_DEVICE_IDS={ids}"]]
    assert found[:-1] == expected


def test_slurm_array_selects_runs(execute: Execute) -> None:
    env = {"COMMAND": "sweep", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "70"}
    (line,) = dry(execute, "--sweep=a.py", **env)
    assert line[-3:] == ["sweep", "--sweep=a.py", "--only=3"]
    assert "--output=slurm_logs/70_3/process_%t.log" in line
    (line,) = dry(execute, "--sweep=a.py", "--only=task", **env)
    assert line[-2:] == ["--sweep=a.py", "--only=task"]


@pytest.mark.parametrize(
    ("args", "env", "words"),
    [
        ([], {}, "No command"),
        (["--config=a.py"], {"SLURM_NTASKS": "2"}, "Add --workdir=DIR"),
        (RUN, {"SLURM_ARRAY_TASK_ID": "1"}, "arrays for sweeps only"),
        (["--sweep=a.py"], {"COMMAND": "sweep", "SLURM_NTASKS": "2"}, "one process"),
        (
            RUN,
            {"SLURM_SUBMIT_DIR": "/", "PYTHON": "false"},
            "Submit from the folder of the checkout",
        ),
    ],
)
def test_slurm_rejects_flags(
    execute: Execute, args: list[str], env: Mapping[str, str], words: str
) -> None:
    done = execute(SLURM, "--", *args, **env)
    assert done.returncode == 2
    assert words in done.stderr


SRUN = """
for word in "$@"; do
  [[ $word != --output=* ]] || log=${word#--output=}
done
echo "step 1/2" >>"${log/\\%t/0}"
[[ -z ${FINISHES:-} ]] || touch "$FAKE/run/results.json"
exit ${STATUS:-0}
"""


@pytest.fixture
def job(execute: Execute, tmp_path: Path) -> Execute:
    """slurm.sbatch as a job of one process."""
    fake(tmp_path, "srun", SRUN)
    fake(tmp_path, "scontrol", 'echo "$*" >>"$FAKE/scontrol"')

    def run(**env: str) -> subprocess.CompletedProcess[str]:
        return execute(SLURM, "--", f"--workdir={tmp_path / 'run'}", SLURM_JOB_ID="5", **env)

    return run


def requeued(folder: Path) -> str:
    path = folder / "scontrol"
    return path.read_text() if path.exists() else ""


def test_finished_job_is_not_requeued(job: Execute, tmp_path: Path) -> None:
    done = job(FINISHES="1")
    assert done.returncode == 0, done.stderr
    assert "step 1/2" in done.stdout
    assert requeued(tmp_path) == ""


def test_stopped_job_is_requeued(job: Execute, tmp_path: Path) -> None:
    done = job()
    assert done.returncode == 0
    assert "stopped and saved before the end; back to the queue" in done.stdout
    assert requeued(tmp_path) == "requeue 5\n"


def test_array_task_is_requeued(job: Execute, tmp_path: Path) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}
    array["MAX_FAILURES"] = "0"  # a time limit is none
    assert job(COMMAND="sweep", STATUS="143", **array).returncode == 143
    assert requeued(tmp_path) == "requeue 5_2\n"


@pytest.mark.slow
def test_failures_are_repeated(job: Execute, tmp_path: Path) -> None:
    assert job(STATUS="2").returncode == 2
    assert requeued(tmp_path) == ""
    assert job(STATUS="75").returncode == 75
    assert requeued(tmp_path) == "requeue 5\n"
    (tmp_path / "run" / "logs" / "failures").write_text("75\n" * 3)
    assert "giving up after 4 failures" in job(STATUS="75").stderr
    assert requeued(tmp_path) == "requeue 5\n"
    job()  # it ran up to the time limit
    assert not (tmp_path / "run" / "logs" / "failures").exists()
