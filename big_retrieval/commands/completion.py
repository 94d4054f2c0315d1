"""Prints the script with which a shell completes commands, flags and names of configs.

    source <(big-retrieval completion bash)
    source <(big-retrieval completion zsh)

Put the line into ~/.bashrc or ~/.zshrc to have it in every shell.
"""

from big_retrieval.errors import UserError

WORDS = 1
WITHOUT = ("config", "workdir", "wait", "plugins")


def main(*words: str) -> None:
    """Prints the script of the shell that the word names."""
    from big_retrieval.commands.shells import SHELLS, script

    if not words or words[0] not in SHELLS:
        given = f"{words[0]!r} is no shell that is known" if words else "the shell is missing"
        raise UserError(f"{given}: big-retrieval completion bash, or ... zsh.")
    print(script(words[0]), end="")
