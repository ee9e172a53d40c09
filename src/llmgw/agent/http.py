"""The agent's own /metrics and /healthz, for those who watch the watchers."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from llmgw.agent.link import Links
from llmgw.agent.reporter import Reporter
from llmgw.core.errors import StorageError
from llmgw.core.fleet.shard import Phase

SHUTDOWN_S: Final = 1.0


class ReportCollector(Collector):
    """Shows what a report says as metrics."""

    def __init__(self, reporter: Reporter, links: Links) -> None:
        self._reporter = reporter
        self._links = links

    def collect(self) -> Iterable[Metric]:
        """Yield all families."""
        report = self._reporter.report()
        phases = Counter(shard.phase for shard in report.shards)
        shards = GaugeMetricFamily(
            "llmgw_agent_shards", "Shards of this node by phase.", labels=["phase"]
        )
        for phase in Phase:
            shards.add_metric([phase.value], phases[phase])
        yield shards
        gpus = report.inventory.gpus
        unusable = sum(1 for gpu in gpus if gpu.unusable)
        family = GaugeMetricFamily(
            "llmgw_agent_gpus",
            "GPUs of this node, and how many must not be used.",
            labels=["state"],
        )
        family.add_metric(["usable"], len(gpus) - unusable)
        family.add_metric(["unusable"], unusable)
        yield family
        yield GaugeMetricFamily(
            "llmgw_agent_links", "Control planes that are linked.", value=len(self._links.open)
        )
        yield GaugeMetricFamily(
            "llmgw_agent_term", "The highest term that was obeyed.", value=report.term
        )
        yield GaugeMetricFamily(
            "llmgw_agent_warnings",
            "Warnings in the inventory.",
            value=len(report.inventory.warnings),
        )


class AgentHttp:
    """Serves them."""

    name = "http"

    def __init__(self, host: str, port: int, reporter: Reporter, links: Links) -> None:
        self._host = host
        self._port = port
        self._reporter = reporter
        self._links = links
        self._registry = CollectorRegistry()
        self._registry.register(ReportCollector(reporter, links))
        self.port = 0
        """What it listens on, once `listening` is set."""
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host, self._port)
            try:
                await site.start()
            except OSError as error:
                raise StorageError(
                    f"cannot listen on {self._host}:{self._port} for metrics: "
                    f"{os.strerror(error.errno or 0)}; stop what listens there or choose another "
                    "(`metrics_port`)"
                ) from error
            self.port = runner.addresses[0][1]
            self.listening.set()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        report = self._reporter.report()
        return web.json_response(
            {
                "status": "ok",
                "node": report.inventory.node,
                "links": len(self._links.open),
                "shards": len(report.shards),
                "warnings": list(report.inventory.warnings),
            }
        )
