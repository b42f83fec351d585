"""Routing for clients, gateways and proxies: follows a channel without being a broker, and answers who owns what from memory.

`Router` for asyncio, `BlockingRouter` for everything else. Neither needs the balancer, the command line, or Spark.
"""

from statechannel.router.router import BlockingRouter, ChangesGap, Route, RouteAnswer, Router, RouterOpening

__all__ = ["BlockingRouter", "ChangesGap", "Route", "RouteAnswer", "Router", "RouterOpening"]
