"""A Pulsar cluster on loopback: ZooKeeper, a bookie, and broker processes with the extensible load manager.

Settings are Pulsar's own but for those below: nothing is forced to the disk, one copy of everything, a session of 6 s, no
shedding, no splits of its own, transfers and the unload in several phases. All processes are this one's children, and are
ended by their ids with the block.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from statechannel.embedded.java import find_java
from statechannel.embedded.process import answers, find_free
from tests.bench.pulsar.client import CLUSTER, Admin

SESSION_S = 6.0
TICK_MS = 2000
"""ZooKeeper ends sessions at the next tick only; this is the tick of Pulsar's own ZooKeeper settings."""
BROKER_HEAP_MIB = 400
ZOOKEEPER_HEAP_MIB = 128
BOOKIE_HEAP_MIB = 256
DIRECT_MIB = 256
START_TIMEOUT_S = 180.0
LOOK_S = 0.1

_EXTENSIONS = "org.apache.pulsar.broker.loadbalance.extensions"
BROKER_SETTINGS: Mapping[str, object] = {
    "clusterName": CLUSTER,
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "metadataStoreSessionTimeoutMillis": int(SESSION_S * 1000),
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "loadManagerClassName": f"{_EXTENSIONS}.ExtensibleLoadManagerImpl",
    "loadBalancerLoadPlacementStrategy": f"{_EXTENSIONS}.strategy.LeastResourceUsageWithWeight",
    "loadBalancerLoadSheddingStrategy": f"{_EXTENSIONS}.scheduler.TransferShedder",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
    "loadBalancerTransferEnabled": "true",
    "loadBalancerMultiPhaseBundleUnload": "true",
    "functionsWorkerEnabled": "false",
    "webSocketServiceEnabled": "false",
}
_OPENED = (
    *("java.base/sun.net", "java.base/jdk.internal.loader", "java.base/jdk.internal.platform", "java.base/java.nio"),
    *("java.base/jdk.internal.misc", "java.management/sun.management", "jdk.management/com.sun.management.internal"),
)
"""As Pulsar's own start script has it."""
_LOG4J = """\
<Configuration status="WARN">
  <Appenders><Console name="console"><PatternLayout pattern="%d [%t] %p %c{1} - %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="console"/></Root></Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class PulsarBroker:
    """A broker process.

    Attributes:
        port: Of the binary protocol.
        web_port: Of admin calls.
    """

    port: int
    web_port: int
    process: subprocess.Popen[bytes]

    @property
    def id(self) -> str:
        """Its name in admin calls."""
        return f"127.0.0.1:{self.web_port}"

    @property
    def url(self) -> str:
        """What lookups name."""
        return f"pulsar://127.0.0.1:{self.port}"


def processor_s(processes: Iterable[subprocess.Popen[bytes]]) -> float:
    """Processor time of all of them since their start."""
    times = [psutil.Process(process.pid).cpu_times() for process in processes]
    return sum(used.user + used.system for used in times)


class PulsarCluster:
    """The processes of a cluster.

    Attributes:
        brokers: By name; the living ones.
        storage: ZooKeeper and the bookie.
    """

    def __init__(self, jars: Path, folder: Path, ends: ExitStack) -> None:
        self._class_path = f"{jars}/*"
        self._folder = folder
        self._ends = ends
        self._java = str(find_java().executable)
        self._log4j = folder / "log4j2.xml"
        self._log4j.write_text(_LOG4J, encoding="ascii")
        self._zookeeper_port = find_free()
        self.brokers: dict[str, PulsarBroker] = {}
        self.storage: list[subprocess.Popen[bytes]] = []

    @property
    def ports(self) -> list[int]:
        """Of the brokers' binary protocol."""
        return [broker.port for broker in self.brokers.values()]

    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Those of the brokers."""
        return [broker.process for broker in self.brokers.values()]

    def name_of(self, url: str) -> str | None:
        """The living broker with this service URL."""
        return next((name for name, broker in self.brokers.items() if broker.url == url), None)

    def admin(self) -> Admin:
        """Admin calls to one of the brokers."""
        return Admin(next(iter(self.brokers.values())).web_port)

    def start_storage(self) -> None:
        """ZooKeeper, the metadata of a new cluster, and one bookie."""
        port, bookie_port = self._zookeeper_port, find_free()
        settings: dict[str, object] = {
            "tickTime": TICK_MS,
            "dataDir": self._folder / "zookeeper",
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "forceSync": "no",
        }
        main = ["org.apache.zookeeper.server.ZooKeeperServerMain", str(self._write("zookeeper", settings))]
        zookeeper = self._spawn("zookeeper", ZOOKEEPER_HEAP_MIB, main)
        self._wait(lambda: answers(port), "zookeeper", zookeeper)
        self._initialise()
        settings = {
            "bookiePort": bookie_port,
            "listeningInterface": _loopback_interface(),
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "metadataServiceUri": f"zk://127.0.0.1:{port}/ledgers",
            "journalDirectories": self._folder / "journal",
            "ledgerDirectories": self._folder / "ledgers",
            "journalSyncData": "false",
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.98,
        }
        main = ["org.apache.bookkeeper.server.Main", "-c", str(self._write("bookie", settings))]
        bookie = self._spawn("bookie", BOOKIE_HEAP_MIB, main)
        self._wait(lambda: answers(bookie_port), "bookie", bookie)
        self.storage = [zookeeper, bookie]

    def add(self, name: str) -> None:
        """Start a broker, and return when it serves."""
        port, web_port = find_free(), find_free()
        metadata = f"zk:127.0.0.1:{self._zookeeper_port}"
        own = {"brokerServicePort": port, "webServicePort": web_port}
        stores = {"metadataStoreUrl": metadata, "configurationMetadataStoreUrl": metadata}
        settings = self._write(name, {**BROKER_SETTINGS, **own, **stores})
        process = self._spawn(name, BROKER_HEAP_MIB, ["org.apache.pulsar.PulsarBrokerStarter", "-c", str(settings)])
        with Admin(web_port) as admin:
            self._wait(admin.is_ready, name, process)
            self.brokers[name] = PulsarBroker(port, web_port, process)
            self._wait(lambda: len(admin.brokers()) == len(self.brokers), name, process)

    def kill(self, name: str) -> PulsarBroker:
        """SIGKILL a broker, and wait until it is gone."""
        broker = self.brokers.pop(name)
        _end(broker.process)
        return broker

    def _initialise(self) -> None:
        metadata, unused = f"zk:127.0.0.1:{self._zookeeper_port}", "127.0.0.1:1"
        given = ["--cluster", CLUSTER, "--metadata-store", metadata, "--configuration-metadata-store", metadata]
        given += ["--web-service-url", f"http://{unused}", "--broker-service-url", f"pulsar://{unused}"]
        given += ["--initial-num-stream-storage-containers", "0", "--initial-num-transaction-coordinators", "1"]
        process = self._spawn("setup", BOOKIE_HEAP_MIB, ["org.apache.pulsar.PulsarClusterMetadataSetup", *given])
        if process.wait(START_TIMEOUT_S) != 0:
            raise self._failure("setup")

    def _write(self, name: str, settings: Mapping[str, object]) -> Path:
        path = self._folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        return path

    def _spawn(self, name: str, heap_mib: int, main: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [
            self._java,
            f"-Xmx{heap_mib}m",
            f"-XX:MaxDirectMemorySize={DIRECT_MIB}m",
            "-XX:+ExitOnOutOfMemoryError",
        ]
        command += [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
        command += [f"-Dlog4j2.configurationFile={self._log4j}", "-cp", self._class_path, *main]
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self._ends.callback(_end, process)
        return process

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait(self, done: Callable[[], bool], name: str, process: subprocess.Popen[bytes]) -> None:
        until_s = time.monotonic() + START_TIMEOUT_S
        while not done():
            if process.poll() is not None or time.monotonic() > until_s:
                raise self._failure(name)
            time.sleep(LOOK_S)

    def _failure(self, name: str) -> RuntimeError:
        lines = self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        return RuntimeError(f"Pulsar's {name} did not start; its log ends: {' | '.join(lines[-5:])}")


@contextmanager
def pulsar_cluster(jars: Path, names: Sequence[str] = ("p1", "p2", "p3")) -> Iterator[PulsarCluster]:
    """A new cluster with a tenant and these brokers, one after the other; killed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="statechannel-bench-pulsar-") as folder, ExitStack() as ends:
        cluster = PulsarCluster(jars, Path(folder), ends)
        cluster.start_storage()
        for name in names:
            began_s = time.monotonic()
            cluster.add(name)
            print(f"pulsar: {name} serves after {time.monotonic() - began_s:.1f} s", file=sys.stderr)
        with cluster.admin() as admin:
            admin.create_tenant()
        yield cluster


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _loopback_interface() -> str:
    return next(
        name for name, addresses in psutil.net_if_addrs().items() if "127.0.0.1" in {at.address for at in addresses}
    )
