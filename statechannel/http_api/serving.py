"""Assembly of the admin API of one process: over the view of a broker's member, or of a console's router."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from statechannel.broker.assembly import access
from statechannel.http_api.access import HttpCallers
from statechannel.http_api.actions import Actions
from statechannel.http_api.application import application
from statechannel.http_api.change_sources import installed_sources
from statechannel.http_api.change_stream import ChangesHub
from statechannel.http_api.cluster import ApiCluster
from statechannel.http_api.openapi import document_of, public
from statechannel.http_api.page.page_feed import PageFeed, PageSource
from statechannel.http_api.page.page_routes import PageReads, asset_routes, topic_reads_of
from statechannel.http_api.pulsar.paths import pulsar_routes
from statechannel.http_api.reads import MemoryReads
from statechannel.http_api.request_book import RequestBook
from statechannel.http_api.routes import ApiRoute, further_routes
from statechannel.http_api.server import HttpServer, Served

if TYPE_CHECKING:
    from statechannel.router import Router
    from statechannel.settings import Settings


def server_of(router: Router, settings: Settings, loop: asyncio.AbstractEventLoop, *, broker: str) -> HttpServer:
    """A server of the admin API over a router, not started.

    Args:
        loop: Of the router.
        broker: Id of the broker in whose process it runs; empty for a console.

    Raises:
        HttpAccessError: The port would be open to a network without authentication, or the file cannot be used.
    """
    callers = HttpCallers(settings.http)

    def served() -> Served:
        cluster = ApiCluster(router, settings, loop, broker=broker, timeout_s=settings.http.answer_timeout_s)
        hub = ChangesHub(cluster, settings.http, installed_sources(settings))
        book = RequestBook(
            access(settings, client_id="statechannel-http"),
            timeout_s=settings.kafka.command_timeout_s,
            remembered_max=settings.requests.remembered_max,
        )
        feed = PageFeed(PageSource(cluster), settings)
        cluster.observe, cluster.dismissals = feed.take, book.fold.dismissals
        routes = every_route(cluster, hub, book, feed)

        def start() -> None:
            hub.start()
            book.start()
            feed.start()

        async def end_streams() -> None:
            await hub.close()
            await feed.close()

        async def close() -> None:
            await end_streams()
            await book.close()

        app = application(routes, settings.http, callers, asset_routes(), cluster.leader)
        return Served(app, start, close, end_streams)

    return HttpServer(settings.http, served, broker=broker)


def every_route(
    cluster: ApiCluster, hub: ChangesHub, book: RequestBook, feed: PageFeed | None = None
) -> list[ApiRoute]:
    """All routes: those of this package, those of installed ones, and Pulsar's where they are switched on."""
    routes: list[ApiRoute] = []
    routes += MemoryReads(cluster, hub).routes(lambda: document_of(public(routes), cluster.settings.http.oidc_issuer))
    routes += Actions(cluster, book).routes()
    routes += further_routes(cluster)
    if feed is not None:
        routes += PageReads(cluster, feed).routes()
        feed.topics, feed.past_topics = topic_reads_of(routes)
        feed.operations = book.newest
    return [*routes, *pulsar_routes(cluster, routes)] if cluster.settings.http.pulsar_paths else routes
