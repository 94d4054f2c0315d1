"""Completion of commands, flags and names of configs by bash and zsh."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from absl import flags

from big_retrieval import commands
from big_retrieval.cli import help as manual
from big_retrieval.cli import shipped

BASH = """\
# Completion of big-retrieval for bash; load it with
#   source <(big-retrieval completion bash)
_big_retrieval() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD - 1]}}"
  local flag= prefix= IFS=$' \\t\\n'
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$current"))
    return
  fi
  # bash makes a word of its own of = where it breaks words there.
  if [[ $current == "=" ]]; then
    flag=$before current=
  elif [[ $before == "=" ]]; then
    flag=${{COMP_WORDS[COMP_CWORD - 2]}}
  elif [[ $current == --*=* ]]; then
    flag=${{current%%=*}} current=${{current#*=}} prefix=$flag=
  fi
  if [[ $flag == --config ]]; then
    COMPREPLY=($(compgen -P "$prefix" -W "{configs}" -- "$current"))
  fi
  if [[ -n $flag ]]; then
    IFS=$'\\n'
    COMPREPLY+=($(compgen -P "$prefix" -f -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]]; then
    compopt -o nospace 2>/dev/null || true
  fi
}}
complete -o filenames -F _big_retrieval big-retrieval
"""
CASE = '    {name}) COMPREPLY=($(compgen -W "{words}" -- "$current")) ;;'
ZSH = """\
# Completion of big-retrieval for zsh; load it with
#   source <(big-retrieval completion zsh)
autoload -Uz compinit && compinit
autoload -Uz bashcompinit && bashcompinit
"""
SHELLS = ("bash", "zsh")


def script(shell: str) -> str:
    """The script that a shell loads.

    Args:
      shell: one of `SHELLS`.
    """
    cases = [CASE.format(name=name, words=" ".join(_words(name))) for name in commands.COMMANDS]
    bash = BASH.format(
        commands=" ".join(commands.COMMANDS),
        configs=" ".join(shipped.configs()),
        cases="\n".join(cases),
    )
    return ZSH + bash if shell == "zsh" else bash


def _words(name: str) -> Sequence[str]:
    """What may follow a command: its actions and flags."""
    found = flags_of(name)
    written = [f"--{flag}=" if value else f"--{flag}" for flag, value in found.items()]
    return [*commands.COMMANDS[name].actions, *written, "--help"]


def flags_of(name: str) -> Mapping[str, bool]:
    """The flags of a command, and whether each takes a value."""
    from big_retrieval import cli

    with _no_flags():
        # Flags are defined by importing; what is imported already has to define them once more.
        importlib.reload(cli)
        module = commands.load(name, again=True)
        for flag in getattr(module, "WITHOUT", ()):
            delattr(flags.FLAGS, flag)
        return {flag.name: manual.takes_value(flag) for flag in manual.own_flags()}


@contextmanager
def _no_flags() -> Iterator[None]:
    """A context in which no flags but absl's --verbosity are defined; then those of before are."""
    before, verbosity = dict(vars(flags.FLAGS)), flags.FLAGS["verbosity"]
    vars(flags.FLAGS).update(vars(flags.FlagValues()))
    flags.DEFINE_flag(verbosity, module_name="absl.logging")
    try:
        yield
    finally:
        vars(flags.FLAGS).update(before)
