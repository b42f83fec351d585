"""`python -m tests.model`: run the commands of the model in design/evidence/model, and compare the model with the code on logs.

    python -m tests.model                      # every command at its own scope, and the first logs of the corpus
    python -m tests.model --scope 5            # the claims at logs of five records; each further one takes some ten times as long
    python -m tests.model --slow               # with the commands that take minutes
    python -m tests.model --only Joins
    python -m tests.model --logs 12000         # the whole corpus: some twenty minutes

It ends with 1 where a command comes to anything but what it says, or a step differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from tests.model.commands import MODEL, TRACE, answers
from tests.model.logs import corpus_logs, explorer_logs
from tests.model.traces import Reader, bind
from tests.support.model_checker import checker

LOGS = 300


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scope", type=int, metavar="N", help="records of a log, in commands that expect no counterexample"
    )
    parser.add_argument("--slow", action="store_true", help="with the commands that take minutes")
    parser.add_argument("--only", metavar="COMMAND", help="this command alone, and no logs")
    parser.add_argument(
        "--logs", type=int, default=LOGS, metavar="N", help=f"logs of the corpus of each kind ({LOGS}); 0: none"
    )
    options = parser.parse_args(argv)
    console = Console(soft_wrap=True, highlight=False)
    fine = run_commands(console, options)
    if options.only is None and options.logs:
        fine &= compare(console, options.logs)
    return 0 if fine else 1


def run_commands(console: Console, options: argparse.Namespace) -> bool:
    fine = True
    console.print(f"{MODEL.name}, commands                came to            as expected   seconds")
    for answer in answers(options.scope, options.only, slow=options.slow):
        word = "counterexample" if answer.satisfiable else "holds"
        if answer.command.startswith("Example"):
            word = "example" if answer.satisfiable else "no example"
        right = answer.satisfiable == answer.expected
        fine &= right
        console.print(f"{answer.command:<40} {word:<18} {'yes' if right else 'NO':<13} {answer.seconds:>7.1f}")
    return fine


def compare(console: Console, logs: int) -> bool:
    with checker(TRACE) as alloy:
        tally = bind(Reader(alloy), (*explorer_logs(), *corpus_logs(logs)))
    steps = tally.strict + tally.lenient
    console.print(f"{tally.matched:,} of {steps:,} steps of {tally.logs:,} logs matched ({tally.matched / steps:.2%}):")
    console.print(
        f"  {tally.strict:,} verdicts, with {tally.states:,} accepted states and all debts; {tally.lenient:,} lenient steps"
    )
    for what, number in sorted(tally.left_out.items()):
        console.print(f"  left out: {number:,} {what}")
    for step in tally.different[:20]:
        console.print(f"  {step.trace}, offset {step.offset}: {step.what}")
    return not tally.different


if __name__ == "__main__":
    sys.exit(main())
