"""Prints the script with which a shell completes commands, flags and names of configs.

    source <(big-retrieval completion bash)
    source <(big-retrieval completion zsh)

Put the line into ~/.bashrc or ~/.zshrc to have it in every shell.
"""

from big_retrieval import cli, commands
from big_retrieval.cli import shipped
from big_retrieval.cli.option_groups import CommonOptions
from big_retrieval.cli.options import flags_of

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
  # bash treats = as a separate word if it is one of its word breaks.
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
    compopt -o filenames 2>/dev/null || true
    IFS=$'\\n'
    COMPREPLY+=($(compgen -P "$prefix" -f -- "$current"))
    return
  fi
  case "${{COMP_WORDS[*]:1:$((COMP_CWORD - 1))}} " in
{cases}
  esac
  if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]]; then
    compopt -o nospace 2>/dev/null || true
  fi
}}
complete -F _big_retrieval big-retrieval
"""
CASE = '    {pattern}) COMPREPLY=($(compgen -W "{words}" -- "$current")) ;;'
ZSH = """\
# Completion of big-retrieval for zsh; load it with
#   source <(big-retrieval completion zsh)
autoload -Uz compinit && compinit
autoload -Uz bashcompinit && bashcompinit
"""


def bash(options: CommonOptions) -> None:
    print(bash_script(), end="")


def zsh(options: CommonOptions) -> None:
    """Prints the script for zsh, which has no `compopt` to omit the space after --flag=."""
    print(ZSH + bash_script().replace("complete -F", "complete -o nospace -F"), end="")


def bash_script() -> str:
    """Returns the script for bash, with the words that may follow each command and action."""
    cases = []
    for name in commands.COMMANDS:
        actions = commands.actions_of(commands.load(name))
        for action in sorted(actions, reverse=True):  # the pattern without an action comes last
            flags = flags_of(cli.options_class(actions[action]))
            candidates = [f"--{x.name}=" if x.takes_value else f"--{x.name}" for x in flags]
            candidates += [] if action else filter(None, actions)
            pattern = f'"{name} {action} "*' if action else f'"{name} "*'
            cases.append(CASE.format(pattern=pattern, words=" ".join([*candidates, "--help"])))
        if "" not in actions:
            candidates = " ".join([*actions, "--help"])
            cases.append(CASE.format(pattern=f'"{name} "*', words=candidates))
    return BASH.format(
        commands=" ".join(commands.COMMANDS),
        configs=" ".join(shipped.configs()),
        cases="\n".join(cases),
    )


ACTIONS = {"bash": bash, "zsh": zsh}
