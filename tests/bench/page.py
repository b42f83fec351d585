"""The live page at many bundles: from a change to the pixel, what the browser's main thread and the broker pay for it."""

import asyncio
import bisect
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.bench.measure import Figure, Load, percentile
from tests.support.browsers import running_browser

BUNDLES = 65_536
RATE_PER_S = 10
STORM_PER_S = 500
PAGES = 20
SECONDS = 20.0
WARM_S = 4.0
_WATCH = """() => {
  window.drawn = [];
  const root = document.documentElement;
  new MutationObserver(() => requestAnimationFrame(() => window.drawn.push([Number(root.dataset.place), Date.now()])))
    .observe(root, { attributes: true, attributeFilter: ["data-place"] });
}"""


class PageProcess:
    """The process that serves the page."""

    def __init__(self, bundles: int) -> None:
        command = [sys.executable, "-m", "tests.bench.page_process", str(bundles)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def _answer(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError("the process that serves the page has ended")
        return json.loads(line)

    def ask(self, *command: Any) -> Any:
        """Its answer to a command."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@contextmanager
def readers(url: str, number: int) -> Iterator[list[int]]:
    """Pages that only read the stream, in a thread of their own; yields the bytes that each of them has read."""
    read_bytes = [0] * number
    loop, begun = asyncio.new_event_loop(), threading.Event()

    async def follow(place: int, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/v1/page/stream") as answer:
            async for part in answer.aiter_raw():
                read_bytes[place] += len(part)

    async def every() -> None:
        limits = httpx.Limits(max_connections=number)
        async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
            tasks = [asyncio.ensure_future(follow(place, client)) for place in range(number)]
            begun.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    task = asyncio.run_coroutine_threadsafe(every(), loop)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    begun.wait()
    try:
        yield read_bytes
    finally:
        task.cancel()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def run(bundles: int = BUNDLES) -> list[Figure]:
    """The floor first: the same process makes the same changes, and no page is served."""
    process, load = PageProcess(bundles), Load()
    try:
        floor, storm_floor = (process.ask("run", rate, SECONDS / 2, True) for rate in (RATE_PER_S, STORM_PER_S))
        url = process.ask("begin")
        for _ in range(PAGES):
            httpx.get(f"{url}/v1").raise_for_status()
        bare_bytes = process.ask("resident")  # of the admin API without the page
        process.ask("feed")
        process.ask("run", RATE_PER_S, WARM_S, False)
        alone = process.ask("run", RATE_PER_S, SECONDS / 2, False)
        kept_bytes = process.ask("resident")
        with readers(url, PAGES) as read_bytes:
            process.ask("run", RATE_PER_S, WARM_S, False)
            before = sum(read_bytes)
            share = process.ask("run", RATE_PER_S, SECONDS, False)
            a_page = (sum(read_bytes) - before) / PAGES / SECONDS
            calm = process.ask("run", 0, SECONDS / 2, False)
            storm = process.ask("run", STORM_PER_S, SECONDS, False)
            most_bytes = process.ask("resident")
            held = process.ask("held")
        delays_ms, busy = _in_browser(process, url)
    finally:
        process.close()
    notes = {
        "bundles": held,
        "changes/s": RATE_PER_S,
        "pages": PAGES,
        "floor": round(floor, 4),
        "kB/s a page": round(a_page / 1e3, 1),
    }
    mib = 2**20
    return [
        Figure("page.state-to-pixel.p50", percentile(delays_ms, 0.5), "ms", load=str(load), notes=notes),
        Figure("page.state-to-pixel.p99", percentile(delays_ms, 0.99), "ms", aim="<= 500", load=str(load)),
        Figure("page.main-thread", 100 * busy, "% of the time", aim="<= 20", load=str(load)),
        Figure("page.broker.no-page", 100 * (alone - floor), "% of a core", load=str(load)),
        Figure("page.broker.calm", 100 * (calm - floor), "% of a core", aim="<= 2", load=str(load)),
        Figure("page.broker.pages", 100 * (share - floor), "% of a core", aim="<= 2", load=str(load)),
        Figure("page.broker.storm", 100 * (storm - storm_floor), "% of a core", load=str(load)),
        Figure("page.memory.kept", (kept_bytes - bare_bytes) / mib, "MiB", load=str(load)),
        Figure("page.memory.pages", (most_bytes - bare_bytes) / mib, "MiB", aim="<= 10", load=str(load)),
    ]  # fmt: skip


def _in_browser(process: PageProcess, url: str) -> tuple[list[float], float]:
    """Delay of each change until a frame has it, and the share of time in which the main thread has work."""
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})  # type: ignore[attr-defined]
        page.goto(url)
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable")
        process.ask("run", STORM_PER_S, WARM_S, False)
        page.evaluate(_WATCH)
        process.ask("sent")
        before = _task_s(metrics)
        process.ask("run", STORM_PER_S, SECONDS, False)
        busy = (_task_s(metrics) - before) / SECONDS
        page.wait_for_timeout(1_000)
        drawn = page.evaluate("window.drawn")
        sent = process.ask("sent")
    places = [place for place, _ in drawn]
    delays = [drawn[at][1] - at_ms for place, at_ms in sent if (at := bisect.bisect_left(places, place)) < len(drawn)]
    if len(delays) < len(sent) / 2:
        raise RuntimeError(f"{len(delays)} of {len(sent)} changes were drawn")
    return delays, busy


def _task_s(metrics: Any) -> float:
    values = {item["name"]: item["value"] for item in metrics.send("Performance.getMetrics")["metrics"]}
    return float(values["TaskDuration"])
