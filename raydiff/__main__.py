"""The `raydiff` command. `raydiff sweep digits`, `python -m raydiff sweep digits` and, in a checkout,
`python jobs/sweep.py digits` are the same; so are `raydiff report` and `python analysis/report.py`."""

from __future__ import annotations

import functools
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from raydiff import process
from raydiff.lookup import nearest

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
        "budget": ("cli.budget", "what the trials on a data set have spent of its budget"),
        "rm": ("cli.rm", "remove a sweep's files"),
        "logs": ("cli.logs", "what a trial has written so far"),
    },
    "finished trials": {
        "generate": ("cli.generate", "samples, with a card that says what they reveal"),
        "push": ("cli.push", "samples to the Hugging Face hub, with their card"),
        "personalize": ("cli.personalize", "a new client joins"),
        "attack": ("cli.attack", "which records was the model trained on? (LiRA, RMIA; DCR, Anonymeter, DOMIAS)"),
        "reconstruct": ("papers.pfdm.reconstruct_command", "from PFDM's uploads back to the records"),
    },
    "checks": {
        "account": ("cli.account", "what a mechanism has spent that ran elsewhere: Opacus, Flower"),
        "audit": ("papers.discrete.audit_command", "what a table's synthetic rows reveal of each record (pDP)"),
        "canary": ("cli.canary", "does a method leak more than its ledger says?"),
        "theory": ("papers.theory_command", "what perfect denoisers would give"),
    },
    "finished sweeps": {
        "report": ("report.page", "a page with tables and pictures"),
        "frontier": ("report.frontier.command", "privacy against quality: the table and the picture"),
        "tables": ("report.load", "all runs and rounds as parquet"),
        "claims": ("papers.claims", "what the papers claim, and what came out"),
        "collaboration": ("papers.pfdm.report", "does federation help the minority? Paired differences"),
        "newcomers": ("papers.spire.report", "how well new clients are served"),
        "feddistr": ("papers.feddistr.report", "utility over entanglement"),
        "pdp": ("papers.discrete.report", "the figures of the per-instance bounds"),
        "referees": ("papers.referees", "a benchmark's accuracies beside those that others published"),
        "ceilings": ("report.attack_ceilings", "attacks beside the most that the ledger allows"),
    },
}
"""What a command is about -> its name -> its module below `raydiff`, whose `main` takes the arguments, and a line."""
READING = {*COMMANDS["finished trials"], *COMMANDS["finished sweeps"], "ls", "logs"}
"""Commands that read sweeps, in a folder or in a bucket."""
BUCKETS = ("s3://", "gs://", "file://")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command, and exit: bad input is one sentence on stderr and code 2."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    known = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}
    if name in ("--help", "-h"):
        leave(_print_overview, arguments)
    if name == "--version":
        leave(_print_version, arguments)
    if name not in known:
        hint = nearest(name, known) or "; `raydiff` alone lists them"
        print(f"error: there is no command {name!r}{hint}", file=sys.stderr)
        sys.exit(2)
    run = import_module(f"raydiff.{known[name]}").main
    leave(functools.partial(_reading, run) if name in READING else run, arguments)


def leave(run: Callable[[Sequence[str]], int | None], arguments: Sequence[str]) -> NoReturn:
    """Run a command's `main` and exit with its code; what it writes is its user's alone."""
    from raydiff.tracking.mlflow_store import redacted

    process.begin()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # A scheduler's end is an interrupt: what ran says so.
    try:
        code = run(arguments) or 0
        sys.stdout.flush()  # What is still to be written is written here, where it is known what to do if it cannot.
        sys.exit(code)
    except KeyboardInterrupt:
        print("interrupted before any trial began; the same command starts again", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError) as e:
        if isinstance(e, BrokenPipeError) and _nobody_reads():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Else the exit would try once more to write what is left.
            sys.exit(141)  # as a shell says of a process that SIGPIPE has ended
        print(f"error: {redacted(str(e))}", file=sys.stderr)
        sys.exit(2)


def _reading(run: Callable[[Sequence[str]], int | None], arguments: Sequence[str]) -> int | None:
    """Run a command that reads sweeps: what an argument names in a bucket is fetched, and read in a folder."""
    if not any("://" in argument for argument in arguments):
        return run(arguments)
    from raydiff.storage.artifact_sync import fetched

    def here(argument: str) -> str:
        option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        return f"{option}{equals}{fetched(value)}" if value.startswith(BUCKETS) else argument

    return run([here(argument) for argument in arguments])


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader, such as `head`, has seen enough."""
    output = select.poll()
    output.register(1, 0)
    return bool(output.poll(0))


def _print_version(arguments: Sequence[str]) -> None:
    from raydiff import __version__

    print(__version__)


def _print_overview(arguments: Sequence[str]) -> None:
    lines = ["usage: raydiff COMMAND ...      raydiff COMMAND --help says more"]
    for about, commands in COMMANDS.items():
        lines += ["", f"{about}:", *(f"  {name:<14} {line}" for name, (_, line) in commands.items())]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
