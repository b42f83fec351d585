"""Rules of the house as programs: each finds its offenders in the wheel's packages.

`offenders.json` holds those of today by rule; it may only shrink. `python -m tests.architecture.house_rules` removes what was
mended from it, and refuses to add anything.
"""

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("statechannel", "loaddata", "shedders", "spark")
STORED = Path(__file__).with_name("offenders.json")

Offenders = Mapping[str, int]
"""How often each offender breaks a rule."""


@cache
def modules() -> Mapping[str, Path]:
    """File of each module, by its dotted name."""
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    return {_dotted(file): file for file in files}


def _dotted(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(file: Path) -> ast.Module:
    """Syntax of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def graph_of(*packages: str) -> grimp.ImportGraph:
    """Who imports whom, imports for type checkers only and inside of functions included."""
    return grimp.build_graph(*packages, cache_dir=None)


# --- structure ----------------------------------------------------------------------------------------------------------


def import_circles() -> Offenders:
    """Files in a circle, each with the number of files in its circle."""
    return circles(graph_of(*PACKAGES))


def circles(graph: grimp.ImportGraph) -> Offenders:
    """The same of any graph."""
    imported = {name: graph.find_upstream_modules(name) for name in graph.modules}
    sizes = {name: 1 + sum(name in imported[other] for other in imported[name]) for name in imported}
    return {name: size for name, size in sizes.items() if size > 1}


def repeated_class_names() -> Offenders:
    """Public classes of one name, by name."""
    names = Counter(
        node.name
        for file in modules().values()
        for node in tree(file).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in names.items() if count > 1}


LINES_MIN = 120
IMPORTERS_MIN = 2
KEPT_SMALL = {
    "loaddata.measure.local_load": "state of a broker's own load; the service around it is I/O",
    "loaddata.measure.host_usage": "Linux network interfaces, apart from the rest of a host's usage",
    "shedders.balancer.placement": "batches of placements, apart from the placement itself",
    "shedders.schemas": "a program that writes files; the command `snapshot schema` prints one of them",
    "shedders.shedding.avg": "a bug-compatible twin, apart from the mended strategy",
    "spark.channel.joins": "what joins read of Kafka, apart from the table",
    "spark.replay.verdicts": "a table of its own",
    "statechannel.pytest_plugin": "an entry point of pytest names the module",
    "statechannel.broker.endings": "the last log lines of a member, apart from running it",
    "statechannel.broker.observe.collector": "garbage collection pauses",
    "statechannel.broker.observe.stalls": "one measurement",
    "statechannel.engine.lease": "a part of the engine, as its siblings",
    "statechannel.kafka.property_rules": "rules and the source of tokens, apart from the properties and from making clients",
    "statechannel.router.transport": "needs httpx, which takes long to load; programs of clients import it",
    "statechannel.protocol.view_copy": "a copy over many steps, apart from rows of a view",
}
"""Small files that stay, with the reason."""


def small_files() -> Offenders:
    """Files of fewer lines than LINES_MIN that fewer than IMPORTERS_MIN files import, by file.

    What a package or an entry point needs is no offcut: `__init__`, `__main__`, files that an entry point names, and programs
    that the Makefile runs.
    """
    programs = set(re.findall(r"\$\(PY\) -m ([\w.]+)", (ROOT / "Makefile").read_text(encoding="utf-8")))
    named = set(re.findall(r'"([\w.]+):\w+"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    graph = graph_of(*PACKAGES)
    found = {}
    for name, file in modules().items():
        lines = len(file.read_text(encoding="utf-8").splitlines())
        if (
            file.stem in ("__init__", "__main__")
            or name in named
            or name in programs
            or name in KEPT_SMALL
            or lines >= LINES_MIN
        ):
            continue
        if len(graph.find_modules_that_directly_import(name)) < IMPORTERS_MIN:
            found[name] = 1
    return found


# --- text for people is write-only --------------------------------------------------------------------------------------

TEXT_NAMES = {"why", "reason", "detail", "message", "hint", "text_for_people", "advice", "sentence"}
READING_METHODS = {
    "startswith", "endswith", "partition", "rpartition", "split", "rsplit", "find", "rfind", "index", "count",
    "removeprefix", "removesuffix",
}  # fmt: skip
MATCHING_CALLS = {"match", "search", "fullmatch", "findall", "finditer"}


READ_BACK_KEPT = {
    "statechannel.cli.kit.failures": "a final full stop is cut off before printing; nothing is decided by it",
    "loaddata.samples.admin": "kafka-python has no typed error for a controller that moved",
}


def read_back_texts() -> Offenders:
    """Places where code matches, splits or searches a text for people, by file."""
    return {name: count for name, count in _counted(reads_text).items() if name not in READ_BACK_KEPT}


def reads_text(node: ast.AST) -> bool:
    """Whether an expression does so."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        if node.func.attr in READING_METHODS:
            return _is_text(node.func.value)
        return node.func.attr in MATCHING_CALLS and any(_is_text(part) for part in node.args)
    if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
        text = isinstance(node.left, ast.JoinedStr) or (
            isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        )
        return text and _is_text(node.comparators[-1])
    return False


def _is_text(node: ast.AST) -> bool:
    """`x.why`, `why`, `str(error)`, `x.why or ""`."""
    if isinstance(node, ast.Attribute):
        return node.attr in TEXT_NAMES
    if isinstance(node, ast.Name):
        return node.id in TEXT_NAMES
    if isinstance(node, ast.BoolOp):
        return any(_is_text(part) for part in node.values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return isinstance(node.args[0], ast.Name) and node.args[0].id in ("error", "exc", "exception", "cause")
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("lower", "strip", "str")
    ):
        return _is_text(node.func.value)
    return False


# --- words --------------------------------------------------------------------------------------------------------------

OUTSIDE = re.compile(
    r"record[- ]format page|\brecord format\b|\bprotocol,? section|(?:source|seed) document", re.IGNORECASE
)
"""Documents that are not in the repository."""
PAGE = re.compile(r"(?<![\"'])\b([a-z][a-z-]*\.md)\b(?: sections? (\d+))?")
ADDRESS = re.compile(r"https?://\S+")


@cache
def sections(page: str) -> frozenset[str] | None:
    """Numbers of the sections of a page of `design/` (or of the root); None: there is no such page."""
    folders = (ROOT / "design", ROOT / "design" / "reference", ROOT / "design" / "evidence", ROOT)
    files = [folder / page for folder in folders if (folder / page).exists()]
    if not files:
        return None
    return frozenset(re.findall(r"^## (\d+)\.", files[0].read_text(encoding="utf-8"), re.MULTILINE))


def dangling_references() -> Offenders:
    """Mentions of documents, pages and sections that are not in the repository, by file."""
    counts = {name: dangling_in(file.read_text(encoding="utf-8")) for name, file in modules().items()}
    return {name: count for name, count in counts.items() if count}


def dangling_in(text: str) -> int:
    """How many a text has."""
    text = ADDRESS.sub("", text)
    pages = ((sections(match[1]), match[2]) for match in PAGE.finditer(text))
    missing = sum(known is None or (number is not None and number not in known) for known, number in pages)
    return missing + len(OUTSIDE.findall(text))


HOUSE_WORDS = re.compile(
    r"\b(?:told|anew|nobody|somebody|whoever|reckons?|reckoned|sets? out|goes by|go by|lays? down|laid down|bur(?:y|ies|ied)|"
    r"so long after|so many|so often|stands? apart|stands? there|beside it|besides|"
    r"(?<!there )is no (?!longer|such|other)[a-z]+|say [A-Z]+|is wanted, found|comes? to rest|on (?:its|their) way)\b"
)
STABLE_WORDS = frozenset({"nobody", "somebody", "not told", "anew"})
"""Codes in records, reports and traces of runs that readers of earlier versions know; pages show them as `code`."""
WORDS_KEPT = {
    "statechannel.engine.repair": "the sentence is in registry records, and so in digests of runs",
    "statechannel.sim.faults": "lines of traces, which are in digests of runs",
    "statechannel.sim.protocol": "lines of traces, which are in digests of runs",
    "statechannel.sim.runs": "names of counters, which are in digests of runs",
}


def house_words() -> Offenders:
    """Words of a private language in docstrings, help and messages, by file."""
    counts: defaultdict[str, int] = defaultdict(int)
    for name, file in modules().items():
        for text in _texts(tree(file)):
            if text not in STABLE_WORDS:
                counts[name] += len(HOUSE_WORDS.findall(re.sub(r"`[^`]*`", "", text)))
    return {name: count for name, count in counts.items() if count and name not in WORDS_KEPT}


def _texts(of: ast.Module) -> Iterator[str]:
    for node in ast.walk(of):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


NAMES = {"told", "one", "found", "made", "standing", "wish", "given", "it", "said", "tell"}
NAMES_KEPT = {"shedders.decisions.explanation": "`said` is a field of a command's JSON"}


def house_names() -> Offenders:
    """Bindings of names that say nothing (`for one in ...`, `found = ...`), by file."""
    return {name: count for name, count in _counted(binds_house_name).items() if name not in NAMES_KEPT}


def binds_house_name(node: ast.AST) -> bool:
    """Whether a statement or an argument does so."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id.strip("_") in NAMES
    if isinstance(node, ast.arg):
        return node.arg.strip("_") in NAMES
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name.strip("_").lower() in NAMES
    return False


def _counted(breaks: Callable[[ast.AST], bool]) -> Offenders:
    counts = {name: sum(breaks(node) for node in ast.walk(tree(file))) for name, file in modules().items()}
    return {name: count for name, count in counts.items() if count}


RULES: Mapping[str, Callable[[], Offenders]] = {
    "import circles": import_circles,
    "repeated class names": repeated_class_names,
    "small files": small_files,
    "texts read back": read_back_texts,
    "dangling references": dangling_references,
    "house words": house_words,
    "house names": house_names,
}


def stored() -> dict[str, dict[str, int]]:
    """Allowed offenders by rule."""
    return dict(json.loads(STORED.read_text(encoding="utf-8")))


def grown(allowed: Offenders, present: Offenders) -> dict[str, int]:
    """Offenders that are new or worse."""
    return {name: count for name, count in present.items() if count > allowed.get(name, 0)}


def shrunk(allowed: Offenders, present: Offenders) -> dict[str, int]:
    """Allowed offenders that offend less, or no more."""
    return {name: count for name, count in allowed.items() if present.get(name, 0) < count}


def main() -> int:
    """Shrink the list."""
    allowed = stored()
    present = {rule: find() for rule, find in RULES.items()}
    if worse := {rule: more for rule in RULES if (more := grown(allowed[rule], present[rule]))}:
        sys.stdout.write(f"not written, as these are new or worse: {json.dumps(worse, indent=1)}\n")
        return 1
    STORED.write_text(json.dumps(present, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    sys.stdout.write("".join(f"{rule}: {len(offenders)}\n" for rule, offenders in present.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
