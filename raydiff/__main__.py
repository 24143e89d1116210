"""The `raydiff` command.

`raydiff sweep digits`, `python -m raydiff sweep digits` and, in a checkout, `python jobs/sweep.py digits` are the same.
"""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from raydiff import __version__, process
from raydiff.lookup import Door, allowed_packages, is_outside, nearest, packages_in, plug_in_error, takes

COMMANDS = {
    "experiments": {
        "sweep": ("cli.sweep", "trials side by side on Ray, recorded in MLflow, compared in a report"),
        "tune": ("cli.tune", "the settings of a preset's arms, chosen alike on the validation split"),
        "run": ("cli.run", "one trial, round by round"),
        "init": ("cli.init", "an experiment file for a data set of your own"),
        "preview": ("cli.preview", "a data set as a trial would use it"),
        "calibrate": ("papers.pfdm.calibrate_command", "how deep PFDM's noise must be for an epsilon"),
        "pretrain": ("papers.feddistr.pretrain_command", "a latent diffusion model from public records"),
        "ls": ("cli.ls", "the sweeps of a storage folder"),
        "budget": ("cli.budget", "the epsilon of all trials on a data set, and what is left of its budget"),
        "rm": ("cli.rm", "remove a sweep's files"),
        "logs": ("cli.logs", "what a trial has written so far"),
    },
    "finished trials": {
        "generate": ("cli.generate", "samples, with a card that says what they reveal"),
        "personalize": ("cli.personalize", "fit a finished run to an unseen client"),
        "attack": ("cli.attack", "which records was the model trained on? (LiRA, RMIA; DCR, Anonymeter, DOMIAS)"),
        "reconstruct": ("papers.pfdm.reconstruct_command", "from PFDM's uploads back to the records"),
    },
    "checks": {
        "account": ("cli.account", "epsilon of a mechanism that ran elsewhere: Opacus, Flower"),
        "audit": ("papers.discrete.audit_command", "what a table's synthetic rows reveal of each record (pDP)"),
        "canary": ("cli.canary", "does a method leak more than its ledger says?"),
    },
    "finished sweeps": {
        "report": ("cli.report", "a page with tables and pictures"),
        "frontier": ("cli.frontier", "privacy against quality: the table and the picture"),
        "paired": ("cli.paired_command", "each setting minus another one, seed by seed, with an interval"),
    },
}
"""Topic -> command -> (its module below `raydiff`, whose `main` takes the arguments; a line about it)."""
MODULES = dict[str, str]()
for commands in COMMANDS.values():
    MODULES |= {name: module for name, (module, _) in commands.items()}
DOOR: Door[Callable[[Sequence[str]], int | None]] = Door(
    "command",
    {name: f"raydiff.{module}:main" for name, module in MODULES.items()},
    check=takes("argv"),
)
READ_SWEEPS = {*COMMANDS["finished trials"], *COMMANDS["finished sweeps"], "ls", "logs", "rm"}
"""Commands whose arguments may name sweeps in a bucket."""
RUN_TRIALS = {"sweep", "run", "tune"}
"""Commands that go on where nobody reads what they print: their record is in files."""
BUCKETS = ("s3://", "gs://", "file://")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command, and exit: bad input is one sentence on stderr and code 2."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    leave(functools.partial(_run, name), arguments)


def _run(name: str, arguments: Sequence[str]) -> int | None:
    if name in ("--help", "-h", "--version"):
        print(__version__ if name == "--version" else _overview())
        return 0
    if name == "--completion":
        print(import_module("raydiff.cli.completion").bash(MODULES), end="")
        return 0
    if name not in DOOR and not is_outside(name):
        raise ValueError(f"there is no command {name!r}{nearest(name, DOOR) or '; `raydiff` alone lists them'}")
    try:
        Path.home(), Path.cwd()  # Both may be missing in a container or a job.
    except (RuntimeError, OSError) as e:
        raise ValueError(
            f"the home or the working directory is missing ({e}): set HOME to a folder that you may write, and work "
            "in a folder that exists"
        ) from None
    packages, arguments = _split_trusted([name, *arguments])
    with allowed_packages(packages), process.optional_output(*["stdout"] * (name in RUN_TRIALS)):
        command = DOOR.resolve(name)
        return command(_fetch_sweeps(arguments) if name in READ_SWEEPS else arguments)


def _split_trusted(words: Sequence[str]) -> tuple[set[str], list[str]]:
    """(packages that the command names, the arguments without --trust).

    Named are those after --trust, of `module:name`, and in experiment files. Folders may name other people's code:
    nothing else is imported for them.
    """
    arguments = list[str]()
    files = [Path(word) for word in words if word.endswith(".toml")]
    named = packages_in(" ".join([*words, *(file.read_text(errors="replace") for file in files if file.is_file())]))
    rest = iter(words[1:])
    for word in rest:
        option, equals, package = word.partition("=")
        if option == "--trust":
            named.add(package if equals else next(rest, ""))
        else:
            arguments.append(word)
    return named, arguments


def leave(run: Callable[[Sequence[str]], int | None], arguments: Sequence[str]) -> NoReturn:
    """Run a command's `main` and exit with its code; its files are readable by the user only."""
    from raydiff.tracking.mlflow_store import redact_passwords

    process.prepare_process()
    with process.optional_output("stderr"), process.stop_signals(process.interrupt):
        try:
            code = run(arguments) or 0
            sys.stdout.flush()  # Here a broken pipe or a full disk can still be handled.
            sys.exit(code)
        except KeyboardInterrupt as e:
            print("interrupted; the same command starts again, or continues", file=sys.stderr)
            sys.exit(128 + process.signal_of(e))
        except BaseException as e:  # A plug-in that exits with code 0 has not done what was asked for.
            expected = isinstance(e, (ValueError, OSError))
            if not (expected or plug_in_error(e)):
                raise
            try:
                sys.stdout.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Else the flush at exit fails again.
                if isinstance(e, BrokenPipeError):
                    sys.exit(141)  # as a shell reports a process that SIGPIPE has ended
            print(f"error: {redact_passwords(str(e) if expected else plug_in_error(e))}", file=sys.stderr)
            sys.exit(2)


def _fetch_sweeps(arguments: Sequence[str]) -> list[str]:
    """The arguments, with local copies of the sweeps that they name in a bucket."""
    fetched = []
    for argument in arguments:
        option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        if value.startswith(BUCKETS):
            from raydiff.storage import copies

            with process.waiting(f"the storage {value}"):
                value = str(copies.fetch_for_reading(value))
        fetched.append(f"{option}{equals}{value}")
    return fetched


def _overview() -> str:
    lines = ["usage: raydiff COMMAND ...      raydiff COMMAND --help says more      raydiff --completion: for bash"]
    lines += ["       raydiff module:main ...  a command of your own"]
    lines += ["       --trust PACKAGE          import this package where the folder of a sweep names it"]
    for topic, commands in COMMANDS.items():
        lines += ["", f"{topic}:", *(f"  {name:<14} {line}" for name, (_, line) in commands.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
