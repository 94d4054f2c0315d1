#!/usr/bin/env bash
# Starts a run on all workers of a Cloud TPU slice, and again after a preemption.
#
#   launch/tpu_pod.sh --name=pod --zone=us-central2-b --project=mine -- \
#       --config=configs/oblique_b16.py --workdir=/mnt/shared/runs/b16
#
# It waits until the TPU is ready, copies the files of this checkout (not those that git ignores) to
# every worker, installs them there and starts `python -m big_retrieval.main --distributed ...` on
# all workers at once, in tmux, so that it outlives this script. On each worker, launch/local.sh
# restarts the process (logs in ~/big_retrieval/logs of the worker); this script shows the progress of
# worker 0 until the run ends. When the TPU is preempted, it waits for a new one (with --accelerator,
# it requests one from the queue) and starts again; the run resumes from its checkpoint.
# The run folder must be on a disk that all workers mount (Filestore, or a bucket by gcsfuse).
#
#   --name=NAME --zone=ZONE --project=PROJECT   which TPU
#   --accelerator=v5litepod-64 --runtime=v2-alpha-tpuv5-lite   to create it if it is missing
#   --spot                    create it as a spot TPU
#   --python=python3.11       on the workers; installed by apt if missing
#   --restarts=100            of the processes on a TPU that stays, and of the TPU
#   --poll=60                 seconds between two checks of the run
#   --dry-run                 print the commands instead
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

fail() {
  echo "error: $*" >&2
  exit 2
}

usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 0
}

name='' zone='' project='' accelerator='' runtime='' spot='' python=python3.11
restarts=100 poll=60 dry='' gone=250
while [[ $# -gt 0 && $1 != -- ]]; do
  case $1 in
    --name=* | --zone=* | --project=* | --accelerator=* | --runtime=* | --python=* | --restarts=* | --poll=*)
      key=${1%%=*}
      printf -v "${key#--}" %s "${1#*=}"
      ;;
    --spot) spot=--spot ;;
    --dry-run | --dry_run) dry=1 ;;
    --help) usage ;;
    *) fail "Unknown flag $1. --help lists the flags; put the flags of the run after --." ;;
  esac
  shift
done
[[ ${1:-} == -- ]] && shift
for key in name zone project; do
  [[ -n ${!key} ]] || fail "Add --$key of the TPU; see --help."
done
[[ -z $accelerator || -n $runtime ]] || fail "--accelerator needs --runtime, the software of the TPU."
[[ $restarts =~ ^[0-9]+$ ]] || fail "--restarts is '$restarts'. Use a whole number."
[[ " $* " == *" --workdir="* ]] ||
  fail "Add --workdir=DIR after --, on a disk that all workers share."
place=(--zone="$zone" --project="$project")

# Runs a command, or prints it as one that a shell understands.
run() {
  if [[ -n $dry ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

# on WORKER COMMAND
on() {
  run gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker="$1" --command="$2"
}

# READY, CREATING, PREEMPTED, ...; MISSING only if Google reports it: a failed request must not
# delete a TPU that exists.
state() {
  local answer
  if answer=$(gcloud compute tpus tpu-vm describe "$name" "${place[@]}" --format='value(state)' 2>&1); then
    echo "${answer##*$'\n'}"
  elif [[ $answer == *NOT_FOUND* ]]; then
    echo MISSING
  else
    echo "launch: ${answer##*$'\n'}" >&2
    echo UNKNOWN
  fi
}

# A queued resource whose TPU is gone has to be deleted before its name can be used again.
create() {
  [[ -n $accelerator ]] || fail "TPU $name is ${1:-} in $zone. Create another with --accelerator."
  run gcloud compute tpus queued-resources delete "$name" "${place[@]}" --force --quiet || true
  run gcloud compute tpus queued-resources create "$name" "${place[@]}" --node-id="$name" \
    --accelerator-type="$accelerator" --runtime-version="$runtime" ${spot:+"$spot"}
}

# Returns once the TPU is ready.
await() {
  local found last='' asked=''
  while found=$(state) && [[ $found != READY ]]; do
    [[ $found == "$last" ]] || echo "launch: $name is $found"
    last=$found
    case $found in
      MISSING | PREEMPTED | TERMINATED)
        if [[ -z $asked ]]; then
          create "$found"
          asked=1
        fi
        ;;
      STOPPED) run gcloud compute tpus tpu-vm start "$name" "${place[@]}" ;;
    esac
    sleep "$poll"
  done
}

install() {
  local folder file
  if [[ -n $dry ]]; then
    folder=.
    echo "git ls-files -z --cached --others --exclude-standard |" \
      "tar --null --files-from=- -czf ./code.tgz"
  else
    folder=$(mktemp -d)
    git -C "$root" ls-files -z --cached --others --exclude-standard |
      while IFS= read -r -d '' file; do
        [[ ! -e $root/$file ]] || printf '%s\0' "$file" # it may be deleted and not committed
      done | tar -C "$root" --null --files-from=- -czf "$folder/code.tgz"
  fi
  on all 'mkdir -p ~/big_retrieval/logs'
  run gcloud compute tpus tpu-vm scp "$folder/code.tgz" "$name:big_retrieval/code.tgz" \
    "${place[@]}" --worker=all
  [[ -n $dry ]] || rm -r "$folder"
  on all "set -e; cd ~/big_retrieval; tar -xzf code.tgz
command -v $python >/dev/null || { sudo apt-get update; sudo apt-get install -y $python $python-venv; }
test -x .venv/bin/python || $python -m venv .venv
.venv/bin/pip install --quiet --constraint constraints.txt --editable '.[tpu]'"
}

# The run on one worker: `status` holds the exit status once it has ended.
start() {
  local words
  words=$(printf '%q ' --distributed "$@")
  on all "cd ~/big_retrieval; tmux kill-session -t run 2>/dev/null; rm -f status
cat >run.sh <<'END'
launch/local.sh --processes=1 --restarts=$restarts --logs=logs -- $words >>logs/launch.log 2>&1
echo \$? >status
END
tmux new-session -d -s run 'bash run.sh'"
}

# Shows worker 0's lines until the run has ended, or the TPU is gone; returns the run's status.
follow() {
  local seen=0 answer last status
  while true; do
    # The status first: once it is there, the log is complete.
    answer=$(on 0 "cd ~/big_retrieval; touch logs/launch.log; s=\$(cat status 2>/dev/null)
n=\$(wc -l <logs/launch.log); head -n \$n logs/launch.log | tail -n +$((seen + 1))
echo \"lines=\$n status=\$s\"") || answer=''
    last=${answer##*$'\n'}
    if [[ $last =~ ^lines=\ *([0-9]+)\ status=([0-9]*)$ ]]; then
      status=${BASH_REMATCH[2]}
      [[ $answer == "$last" ]] || echo "${answer%$'\n'*}"
      seen=${BASH_REMATCH[1]}
      [[ -z $status ]] || return "$status"
    fi
    case $(state) in
      READY | UNKNOWN) ;;
      *) return "$gone" ;;
    esac
    sleep "$poll"
  done
}

if [[ -n $dry ]]; then
  echo "# wait until this says READY:"
  run gcloud compute tpus tpu-vm describe "$name" "${place[@]}" --format='value(state)'
  if [[ -n $accelerator ]]; then
    echo "# where there is none, or it was preempted:"
    create
  fi
  echo "# copy and install:"
  install
  echo "# start on all workers, then follow worker 0:"
  start "$@"
  exit 0
fi

for ((attempt = 0; attempt <= restarts; attempt++)); do
  await
  install
  start "$@"
  code=0
  follow || code=$?
  [[ $code == "$gone" ]] || exit "$code"
  echo "launch: $name is no longer ready; restarting when it is ready"
done
echo "launch: giving up after $restarts restarts" >&2
exit 75
