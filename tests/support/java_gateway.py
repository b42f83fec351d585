"""A Java process with a tool in it, called from Python over py4j."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import py4j.java_gateway
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from statechannel.embedded.java import find_java


@contextmanager
def java_gateway(class_path: Sequence[Path], options: Sequence[str], **parameters: Any) -> Iterator[JavaGateway]:
    """The process, ended with the block.

    Args:
        options: Of Java, besides its heap of 512 MiB.
        parameters: Further ones of py4j's `GatewayParameters`.
    """
    import pyspark  # noqa: PLC0415 - only for the jar of py4j beside it

    bridge = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
    port, token = launch_gateway(
        classpath=os.pathsep.join(map(str, class_path)),
        jarpath=str(bridge),
        java_path=str(find_java().executable),
        javaopts=["-Xmx512m", "-XX:+UseSerialGC", *options],
        enable_auth=True,
        die_on_exit=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True, **parameters)
    )
    # Spark, started by another test of this process, asks its own Java process for the text of every exception.
    plain = patch.object(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)
    try:
        with plain:
            yield gateway
    finally:
        gateway.shutdown()
