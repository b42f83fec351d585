"""Alloy, which checks the model in design/evidence/model: its commands, and what its functions say of a given instance.

The jar is pinned in model_checker.sha256 as the broker's are. `python -m tests.support.model_checker` fills the cache.
"""

import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from py4j.java_gateway import JavaGateway

from statechannel.embedded.jars import PinnedJars
from tests.support.java_gateway import java_gateway

ALLOY_VERSION = "6.2.0"
JAR = PinnedJars(
    title=f"Alloy {ALLOY_VERSION}",
    package="tests.support",
    resource="model_checker.sha256",
    folder_name=f"alloy-{ALLOY_VERSION}",
    variable="MODEL_CHECKER_JARS",
    size_mib=21,
)
SOLVERS = ("glucose", "sat4j")
"""The first is native code in the jar, and several times as fast; the second is Java and runs everywhere."""
_ATOM = re.compile(r"[^{}, ]+")


@dataclass(frozen=True)
class Answer:
    """What a command came to.

    Attributes:
        satisfiable: An example of a `run`, or a counterexample of a `check`.
        expected: Whether one should be found, by the text of the command.
    """

    command: str
    satisfiable: bool
    expected: bool
    seconds: float


class Checker:
    """One file of the model, read by Alloy in a Java process of its own."""

    def __init__(self, gateway: JavaGateway, file: Path) -> None:
        alloy = gateway.jvm.edu.mit.csail.sdg
        self._java, self._alloy = gateway.jvm.java, alloy
        self._reporter = alloy.alloy4.A4Reporter.NOP
        self._world = alloy.parser.CompUtil.parseEverything_fromFile(self._reporter, None, str(file))
        self._options = alloy.translator.A4Options()
        known = {
            solver.id(): solver
            for solver in gateway.jvm.kodkod.engine.satlab.SATFactory.getAllSolvers()
            if solver.isPresent()
        }
        self.solver = next(name for name in SOLVERS if name in known)
        self._options.solver = known[self.solver]
        self._commands = {str(command.label): command for command in self._world.getAllCommands()}
        self._expressions: dict[str, Any] = {}

    @property
    def commands(self) -> Sequence[str]:
        """Their names, in the order of the file."""
        return [*self._commands]

    def run(self, name: str) -> Answer:
        """Run one command."""
        command = self._commands[name]
        began_s = time.monotonic()
        satisfiable = bool(self._solve(command).satisfiable())
        return Answer(name, satisfiable, command.expects == 1, time.monotonic() - began_s)

    def skeleton(self, name: str) -> ET.Element:
        """An instance without any atom but those of enumerations: every signature and field, as Alloy writes them.

        Args:
            name: A command that finds an instance.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "instance.xml"
            self._solve(self._commands[name]).writeXML(self._reporter, str(path), [], {})
            instance = ET.parse(path).getroot()
        single = {element.get("ID") for element in instance.iter("sig") if element.get("one") == "yes"}
        for kind in ("sig", "field"):
            for element in instance.iter(kind):
                if element.get("ID") not in single:
                    for given in (*element.findall("atom"), *element.findall("tuple")):
                        element.remove(given)
        return instance

    def evaluate(self, instance: ET.Element, expressions: Sequence[str]) -> list[list[str]]:
        """The atoms of each of these sets of an instance; nothing is solved, and facts are not asked for.

        Alloy names them anew: by their signature, and a number in the order in which the instance has them.
        """
        reader = self._java.io.StringReader(ET.tostring(instance, encoding="unicode"))
        solution = self._alloy.translator.A4SolutionReader.read(
            self._world.getAllReachableSigs(), self._alloy.alloy4.XMLNode(reader)
        )
        return [_ATOM.findall(solution.eval(self._parsed(text)).toString()) for text in expressions]

    def _parsed(self, text: str) -> Any:
        if text not in self._expressions:
            self._expressions[text] = self._world.parseOneExpressionFromString(text)
        return self._expressions[text]

    def _solve(self, command: Any) -> Any:
        return self._alloy.translator.TranslateAlloyToKodkod.execute_command(
            self._reporter, self._world.getAllReachableSigs(), command, self._options
        )


@contextmanager
def checker(file: Path) -> Iterator[Checker]:
    """A Java process with a file of the model in it, ended with the block.

    Raises:
        py4j.protocol.Py4JJavaError: The file is not Alloy; the message says where.
    """
    # Alloy unpacks solvers and leaves them behind.
    with (
        tempfile.TemporaryDirectory() as scratch,
        java_gateway(JAR.prepare(), ["-Xss16m", f"-Djava.io.tmpdir={scratch}"], auto_field=True) as gateway,
    ):
        yield Checker(gateway, file)


if __name__ == "__main__":
    JAR.prepare(say=lambda line: print(f"setup: {line}", flush=True))
    sys.exit(0)
