"""The same application on Ray Serve: beyond one machine, replicas are placed, scaled and replaced by Ray.

A replica is the whole of `server.app` with one worker, and one GPU for each rank of it where there are any. Requests
come through Ray's proxies, which route to the replica with the shorter queue and pass streams on as they come. Figures
are each replica's own: every one answers /metrics on its own port, and GET /metrics/targets lists these ports in the
form that Prometheus discovers (`http_sd_configs`), so that its sums over them are the totals.

Needs the extra `ray`. Start with:  serve run server.rayserve:build [name=value …]
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Final, NoReturn

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from psd_core.errors import ConfigError
from server.app import create_app
from server.boot import Hooks
from server.errors import ApiError
from server.flags import FLAGS
from server.logs import configure_logging
from server.metrics import CONTENT_TYPE
from server.run import app_state
from server.settings import ModelSettings, Settings, resolve
from server.speedups import check_speedups

FlagValue = str | int | float | bool

DEPLOYMENT: Final = "PSD"
TARGETS_DEPLOYMENT: Final = "MetricsTargets"
HEALTH_CHECK_SECONDS: Final = 5.0
ANNOUNCE_SECONDS: Final = 5.0  # how often a replica says where its metrics are
TARGET_SECONDS: Final = 4 * ANNOUNCE_SECONDS  # a replica that is silent for so long is gone
REPORT_SECONDS: Final = 10.0  # Ray's own interval between two reports of how many requests are open
DRAIN_MARGIN_SECONDS: Final = 10.0  # for the worker to end behind the drain timeout


class RayArguments(BaseModel):
    """Arguments of `build`, as they stand in a Serve configuration or, as texts, behind `serve run`.

    flags                    of `psd serve`, with underscores; what is absent comes from PSD_* where the replica runs.
                             An object, or its JSON
    min_replicas             0 lets the application sleep; the next request then waits for a model to load
    target_ongoing_requests  per replica; more are scaled up, fewer down. Three quarters of max_num_seqs by default
    max_ongoing_requests     per replica; beyond it Ray's proxies hold requests back. Twice max_num_seqs by default
    look_back_period_s       the load is averaged over so long before it is compared with the target
    num_gpus, num_cpus       what a replica reserves. One GPU for each rank, or none; its worker sees only these
    """

    model_config = ConfigDict(extra="forbid")

    flags: dict[str, FlagValue] = {}
    min_replicas: Annotated[int, Field(ge=0)] = 1
    max_replicas: Annotated[int, Field(ge=1)] = 1
    target_ongoing_requests: Annotated[float, Field(gt=0)] | None = None
    max_ongoing_requests: Annotated[int, Field(ge=1)] | None = None
    upscale_delay_s: Annotated[float, Field(ge=0)] = 30.0
    downscale_delay_s: Annotated[float, Field(ge=0)] = 600.0
    look_back_period_s: Annotated[float, Field(gt=0)] = 30.0
    num_gpus: Annotated[float, Field(ge=0)] = 1.0
    num_cpus: Annotated[float, Field(ge=0)] = 2.0

    @field_validator("flags", mode="before")
    @classmethod
    def read_flags(cls, given: object) -> object:
        """The object that a text means."""
        try:
            return json.loads(given) if isinstance(given, str) else given
        except ValueError:
            raise ValueError(f"flags must be a JSON object, got {given!r}") from None


class MetricsTargets:
    """Where the replicas answer /metrics. One for the whole application; a new one learns it all within seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}  # replica id → address, monotonic seconds

    def register(self, replica_id: str, address: str) -> None:
        """A replica is alive and listens there."""
        self._seen[replica_id] = (address, time.monotonic())

    def list(self) -> dict[str, str]:
        """Replica id → host:port of those that were heard of lately."""
        oldest = time.monotonic() - TARGET_SECONDS
        self._seen = {replica_id: seen for replica_id, seen in self._seen.items() if seen[1] >= oldest}
        return {replica_id: address for replica_id, (address, _) in self._seen.items()}


class Replica:
    """What Ray asks a replica beside HTTP. `serve.ingress` adds the application as `self.app`."""

    app: FastAPI

    def __init__(self, targets: DeploymentHandle) -> None:
        """targets: bound here so that it is deployed beside the replicas; the application finds it by its name."""

    async def check_health(self) -> None:
        """RuntimeError once no worker will ever be ready again: Ray then replaces the replica."""
        state = app_state(self.app)
        if state.status == "failed":
            raise RuntimeError(state.failure or state.pool.failure)


def build(given: Mapping[str, object]) -> Application:
    """The Serve application, from what RayArguments lists. ValueError or ConfigError names what is wrong with it.

    Ray calls this with a plain mapping: it would read the model from an annotation that is no text, as all are here.
    """
    arguments = RayArguments.model_validate(given)
    if arguments.min_replicas > arguments.max_replicas:
        raise ConfigError(
            "min_replicas",
            f"min_replicas must be at most max_replicas {arguments.max_replicas}, got {arguments.min_replicas}",
        )
    settings = resolve_flags(arguments.flags, arguments.num_gpus)
    num_seqs = settings.engine.max_num_seqs
    flags, num_gpus = dict(arguments.flags), arguments.num_gpus

    def make_app() -> FastAPI:
        return make_replica_app(resolve_flags(flags, num_gpus))

    replica = serve.deployment(serve.ingress(make_app)(Replica)).options(
        name=DEPLOYMENT,
        max_ongoing_requests=arguments.max_ongoing_requests or 2 * num_seqs,
        autoscaling_config={
            "min_replicas": arguments.min_replicas,
            "max_replicas": arguments.max_replicas,
            "target_ongoing_requests": arguments.target_ongoing_requests or 0.75 * num_seqs,
            "upscale_delay_s": arguments.upscale_delay_s,
            "downscale_delay_s": arguments.downscale_delay_s,
            "look_back_period_s": arguments.look_back_period_s,
            "metrics_interval_s": min(REPORT_SECONDS, arguments.look_back_period_s / 3),
        },
        ray_actor_options={"num_cpus": arguments.num_cpus, "num_gpus": arguments.num_gpus},
        health_check_period_s=HEALTH_CHECK_SECONDS,
        graceful_shutdown_timeout_s=settings.http.drain_seconds + DRAIN_MARGIN_SECONDS,
    )
    targets = serve.deployment(MetricsTargets).options(
        name=TARGETS_DEPLOYMENT, num_replicas=1, ray_actor_options={"num_cpus": 0}
    )
    return replica.bind(targets.bind())


def resolve_flags(flags: Mapping[str, FlagValue], num_gpus: float) -> Settings:
    """Settings of a replica, which has so many GPUs, from the flags and its environment."""
    known = {flag.name for flag in FLAGS}
    for name in flags:
        if name not in known:
            raise ConfigError(name, f"{name} is no flag of psd serve")
    settings = resolve({name: [str(value)] for name, value in flags.items()})
    if settings.model.replicas != 1:
        raise ConfigError("replicas", f"replicas must be 1: Ray places them, got {settings.model.replicas}")
    model = dataclasses.replace(settings.model, device=fit_device(settings.model, num_gpus))
    check_speedups(
        {
            "tensor_parallel_size": model.tensor_parallel_size,
            "compile": model.compiles,
            "cuda_graphs": model.cuda_graphs,
            "device": model.device,
        }
    )
    return dataclasses.replace(settings, model=model)


def fit_device(model: ModelSettings, num_gpus: float) -> str:
    """The device of a replica that reserves so many GPUs. ConfigError unless all of them, and no others, are used."""
    device, size = model.device, model.tensor_parallel_size
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError("device", f"device must be auto, cpu or cuda: Ray chooses the GPUs, got {device!r}")
    if device == "cpu" and num_gpus > 0:
        raise ConfigError("num_gpus", f"num_gpus must be 0 where device is cpu, got {num_gpus:g}")
    if device == "cuda" and num_gpus == 0:
        raise ConfigError("num_gpus", "num_gpus must be above 0 where device is cuda, got 0")
    if num_gpus > size or (size > 1 and 0 < num_gpus < size):
        raise ConfigError(
            "num_gpus", f"num_gpus must be tensor_parallel_size {size}, one for each rank, got {num_gpus:g}"
        )
    # Ray hides no GPU from a replica that reserves none: "auto" would take one that another has reserved.
    return "cpu" if num_gpus == 0 else device


def make_replica_app(settings: Settings) -> FastAPI:
    """The application of one replica. Its start ends when the model is served, so no request comes before."""
    configure_logging(settings.log_level, settings.log_format)
    is_decided = asyncio.Event()
    app = create_app(settings, Hooks(lambda admission: is_decided.set(), lambda reason: is_decided.set()))
    state = app_state(app)
    start = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with start(app):
            await is_decided.wait()
            if state.failure is not None:
                raise RuntimeError(state.failure)
            async with _metrics_listener(app):
                yield

    app.router.lifespan_context = lifespan
    # Through a proxy /metrics would be that of any one replica: in front of the application's own route.
    app.router.routes[:0] = [Route("/metrics/targets", _list_targets), Route("/metrics", _no_metrics)]
    return app


def _targets() -> DeploymentHandle:
    """The MetricsTargets of this replica's application."""
    return serve.get_deployment_handle(TARGETS_DEPLOYMENT, app_name=serve.get_replica_context().app_name)


async def _list_targets(request: Request) -> Response:
    """The replicas' addresses, in the form of Prometheus's HTTP discovery."""
    found = await _targets().list.remote()
    return JSONResponse([{"targets": [address], "labels": {"replica": replica}} for replica, address in found.items()])


async def _no_metrics(request: Request) -> Response:
    raise ApiError(404, "unknown_path", "every replica has figures of its own: GET /metrics/targets lists where")


@asynccontextmanager
async def _metrics_listener(app: FastAPI) -> AsyncIterator[None]:
    """Answer /metrics on a free port of this node, without a key, as Ray answers its own."""
    state = app_state(app)

    async def metrics(request: Request) -> Response:
        state.metrics.counted(state.pool.states)
        return Response(state.metrics.render(), media_type=CONTENT_TYPE)

    address = get_node_ip_address()
    listener = socket.create_server((address, 0))
    site = Starlette(routes=[Route("/metrics", metrics)])
    server = _Listener(uvicorn.Config(site, lifespan="off", log_config=None, access_log=False))
    task = asyncio.create_task(server.serve(sockets=[listener]), name="metrics")
    announcing = asyncio.create_task(_announce(f"{address}:{listener.getsockname()[1]}", _targets()), name="announce")
    try:
        yield
    finally:
        announcing.cancel()
        server.should_exit = True
        await asyncio.wait((task, announcing))
        task.result()


async def _announce(address: str, targets: DeploymentHandle) -> NoReturn:
    """Say where the metrics are, again and again until cancelled: to the last stream of a replica that is leaving."""
    replica_id = serve.get_replica_context().replica_id.unique_id
    while True:
        targets.register.remote(replica_id, address)
        await asyncio.sleep(ANNOUNCE_SECONDS)


class _Listener(uvicorn.Server):
    """uvicorn inside a process whose signals belong to Ray."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield
