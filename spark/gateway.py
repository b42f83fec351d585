"""Starts the JVM of a session, apart from signals of the terminal, and passes on what it has to say."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import BinaryIO

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

# What every start says, whether all is well or not. The rest passes.
_NOISE = (b"WARNING: Using incubator modules",)


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM unless this process has one.

    It is in a process group of its own, so that a signal for the terminal's group reaches the job, which then stops its
    query in order. The JVM ends by itself when this process does, however that ends.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001 - the place where pyspark keeps it
        return
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(os.fdopen(reading, "rb"),), name="spark-stderr", daemon=True).start()
    try:
        gateway = launch_gateway(conf, {"stderr": writing, "process_group": 0})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as SparkContext itself does


def _pass_on(stream: BinaryIO) -> None:
    with stream:
        for line in stream:
            if not line.startswith(_NOISE):
                os.write(2, line)
