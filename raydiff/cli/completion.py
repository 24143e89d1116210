"""Shell completion: `raydiff --completion > FILE`, and source FILE in ~/.bashrc."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from raydiff.cli.options import labels
from raydiff.experiment import overrides, presets

SCRIPT = """\
_raydiff() {{
    local words="{commands}"
    if [ "$COMP_CWORD" -gt 1 ]; then
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -o default -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -F _raydiff raydiff
"""


def bash(modules: Mapping[str, str]) -> str:
    """Return a bash script that completes commands (name -> module), their options, and fields by path."""
    fields = [f"--{path}" for path in overrides.flatten_settings(presets.study(presets.MAIN).experiment)]
    cases = []
    for name, where in modules.items():
        members: dict[str, Any] = vars(import_module(f"raydiff.{where}"))
        words = ["--help", "--help-all"]
        for key, cls in members.items():
            if key.endswith("Options") and cls.__module__ == f"raydiff.{where}":
                words += [label for label in labels(cls) if label.startswith("--")]
        words += fields if "parse_command" in members else []
        cases.append(f'        {name}) words="{" ".join(words)}" ;;')
    return SCRIPT.format(commands=" ".join(modules), cases="\n".join(cases))
