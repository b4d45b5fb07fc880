"""Figures of a running node for Prometheus, on loopback: no account, peer or job is ever a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import hypercorn.config
import hypercorn.trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gdf_market.units import CREDIT, SECOND_MS

if TYPE_CHECKING:
    import trio

Status = Callable[[], Mapping[str, Any]]

MAX_REASONS = 128  # values of a label; they are words of this program, never text from a peer


class NodeCollector(Collector):
    """Turns what `gdf-market status` tells into metrics, each time that it is asked."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        status = self._status()
        gauges = {
            "ledger_height": ("Height of the last final block.", status["height"]),
            "ledger_block_age_seconds": ("Age of the last final block.", (status["block_age_ms"] or 0) / SECOND_MS),
            "peers": ("Connected peers.", len(status["peers"])),
            "orders": ("Open orders in the book.", status["orders"]),
            "balance_credits": ("Settled credits of this account.", status["balance"] / CREDIT),
            "stake_credits": ("Credits locked as a validator's bond.", status["stake"] / CREDIT),
            "validator": ("1 if this node is in the validator set.", int(status["validator"])),
            "working": ("1 if a unit is computed now.", int(status["step"] is not None)),
            "held_back": ("1 if this node offers nothing now: pause, hours, battery, heat.", int(bool(status["hold"]))),
            "uptime_seconds": ("Time since the node started.", status["uptime_s"]),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"gdf_{name}", text, value)
        yield CounterMetricFamily("gdf_units_trained", "Units trained since the start.", status["trained"])
        yield CounterMetricFamily("gdf_units_audited", "Units audited since the start.", status["audited"])
        yield CounterMetricFamily("gdf_ledger_dropped", "Ledger messages dropped since the start.", status["dropped"])
        yield _by_reason("gdf_orders_refused", "Orders refused since the start.", status["refused_orders"])


def _by_reason(name: str, text: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["reason"])
    for reason, count in sorted(counts.items())[:MAX_REASONS]:
        family.add_metric([reason], count)
    return family


def create_metrics(status: Status) -> Starlette:
    """Return the application that answers GET /metrics, and nothing else."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(status))

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/metrics", metrics)])


async def serve_metrics(status: Status, port: int, *, task_status: trio.TaskStatus[str]) -> None:  # type: ignore[name-defined]  # old stubs
    """Serve on 127.0.0.1 until cancelled; starts with the URL.  Raises OSError when the port is taken."""
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "ERROR"
    config.errorlog = None
    await hypercorn.trio.serve(create_metrics(status), config, task_status=task_status)
