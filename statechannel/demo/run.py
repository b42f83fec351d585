"""Run of the demo, which always ends the processes that it has started."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from statechannel.demo.chapters import Chapters
from statechannel.demo.cluster import ADDRESS_VARIABLE, DemoCluster
from statechannel.demo.errors import DemoError
from statechannel.demo.narrator import Narrator
from statechannel.demo.promises import Promises
from statechannel.demo.story import Story
from statechannel.errors import StateChannelError


def run_demo(
    cluster: DemoCluster,
    narrator: Narrator,
    *,
    keep: bool = False,
    story_of: Callable[[DemoCluster, Narrator, Promises], Chapters] = Story,
) -> list[str]:
    """Run a story and clean up.

    Args:
        keep: Leave the cluster running on success.

    Returns:
        The promises that did not hold.

    Raises:
        DemoError: It could not continue.
    """
    story = story_of(cluster, narrator, Promises(narrator))
    went_well = False
    try:
        story.run()
        went_well = not story.promises.broken
        if keep and went_well:
            _keep_running(story)
    except StateChannelError as error:
        look = places_to_look(cluster, first=getattr(error, "log", None))
        narrator.failed(str(error), look)
        raise DemoError(f"{narrator.where} of the demo failed: {error}", hint=look) from error
    else:
        return story.promises.broken
    finally:
        with _ignore_interrupts():
            story.close()
            if not (keep and went_well):
                _end(cluster, narrator, keep_files=not went_well)


def _end(cluster: DemoCluster, narrator: Narrator, *, keep_files: bool) -> None:
    narrator.clean_up()
    pids = [broker.pid for broker in cluster.living()]
    cluster.end(keep_files=keep_files)
    narrator.say(f"{len(pids)} brokers and Kafka were ended.")
    if keep_files:
        narrator.say(f"Logs and data are still in {cluster.folder}")


def places_to_look(cluster: DemoCluster, *, first: Path | None = None) -> str:
    """Hint with the log files that may have the cause: Kafka's and the brokers'."""
    logs = [cluster.kafka_log, *(broker.log for broker in cluster.brokers.values())]
    others = [path for path in logs if path.exists() and path != first]
    names = [str(path) for path in ([first] if first is not None else []) + others]
    return f"Read {', '.join(names)}" if names else f"Read the files in {cluster.folder}"


def _keep_running(story: Chapters) -> None:
    cluster, narrator = story.cluster, story.narrator
    narrator.step("The cluster keeps running")
    narrator.command(f"export {ADDRESS_VARIABLE}={cluster.address}")
    for example in story.EXAMPLES:
        narrator.command(f"{story.name} {example.format(topic=story.topics[0])}")
    narrator.say("To end it:")
    narrator.command(f"kill {' '.join(str(broker.pid) for broker in cluster.living())}")
    narrator.command(f"{story.name} kafka down --folder {cluster.kafka_folder}")
    narrator.command(f"rm -r {cluster.folder}")


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore a second Ctrl-C, which would leave processes behind; the clean-up has its own time limits."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
