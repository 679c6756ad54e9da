"""Replicas on Ray Serve: the server's engine and app, as a deployment that Ray places, watches and restarts.

A deployment file, deploy.py, which `serve run deploy:app` runs on a cluster:

    from roseinfer.server.replicas import application

    app = application("Qwen/Qwen2.5-7B-Instruct", num_gpus=1, min_replicas=1, max_replicas=8)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from starlette.types import ASGIApp

from roseinfer.arguments import require_count, require_positive
from roseinfer.engine.config import EngineConfig

from .settings import ServerSettings

if TYPE_CHECKING:
    from roseinfer.llm.llm import LLM

    from .run import Serving

NAME = "roseinfer"
MOST_REPLICAS = 4096
# Ray asks a replica so often whether its engine still runs. That a process is gone it notices by itself.
HEALTH_SECONDS = 2.0
LOADS = 2  # of a model, before a deployment is given up
SPARE_REQUESTS = 16  # beside those that run and wait: /health, and those that the engine answers 429
EVERYWHERE = "0.0.0.0"  # under which names Ray's proxy is asked, a replica does not know
BY_HEADER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"


def application(
    model: str,
    *,
    engine: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
    min_replicas: int = 1,
    max_replicas: int = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    by_header: bool = False,
) -> Application:
    """Make a Ray Serve application of a model. engine: arguments of LLM. server: fields of ServerSettings.

    Ray has its own host and port. num_cpus, num_gpus: of each replica. by_header: see deployed. Raises ValueError for a
    wrong value; what only the model can refuse, a replica refuses when it starts.
    """
    from .run import Serving

    settings = ServerSettings(**{"host": EVERYWHERE} | dict(server or {})).with_template_text()
    given = dict(engine or {})
    serving = Serving(make_llm=partial(load, model, given), model_name=settings.served_model_name or model)
    max_num_seqs = given.get("max_num_seqs", EngineConfig(num_blocks=1).max_num_seqs)
    resources = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    return deployed(serving, settings, (min_replicas, max_replicas), max_num_seqs, resources, by_header)


def load(model: str, engine: dict[str, Any]) -> LLM:
    from roseinfer.llm.llm import LLM

    return LLM(model, **engine)


def deployed(
    serving: Serving,
    settings: ServerSettings,
    replicas: tuple[int, int],
    max_num_seqs: int,
    resources: Mapping[str, float],
    by_header: bool,
) -> Application:
    """Deploy EngineReplica. replicas: the least and the most; Ray keeps about max_num_seqs requests on each.

    by_header: requests with the same value of the header that RAY_SERVE_SESSION_ID_HEADER_KEY names (x-session-id when
    it is not set) go to the same replica, by Ray's ConsistentHashRouter. Otherwise each goes to the less busy one of
    two drawn replicas.
    """
    least, most = replicas
    require_count("min_replicas", least, at_least=1, at_most=MOST_REPLICAS)
    require_count("max_replicas", most, at_least=least, at_most=MOST_REPLICAS)
    require_positive("num_cpus", resources["num_cpus"])
    count: dict[str, Any] = {"num_replicas": least}
    if most > least:
        scaling = AutoscalingConfig(min_replicas=least, max_replicas=most, target_ongoing_requests=max_num_seqs)
        count = {"autoscaling_config": scaling}
    router: dict[str, Any] = {"request_router_class": BY_HEADER} if by_header else {}
    deployment: Any = serve.deployment(EngineReplica)
    return deployment.options(
        name=NAME,
        **count,
        ray_actor_options=dict(resources),
        max_ongoing_requests=max_num_seqs + settings.max_queue + SPARE_REQUESTS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        health_check_period_s=HEALTH_SECONDS,
        max_constructor_retry_count=LOADS,
        request_router_config=RequestRouterConfig(**router),
    ).bind(serving, settings)


@serve.ingress()
class EngineReplica:
    """One engine and its app, in a process of its own. Ray sends it requests once the model is loaded and warm."""

    async def __init__(self, serving: Serving, settings: ServerSettings) -> None:  # type: ignore[misc]  # Ray awaits it
        from .run import SWITCH_SECONDS, settled
        from .service import Service

        sys.setswitchinterval(SWITCH_SECONDS)
        self.settings = settings
        self.service = Service(replace(serving, make_llm=partial(settled, serving.make_llm)), settings)
        await self.service.start()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        from .app import make_app

        return make_app(self.service, self.settings, serve.get_replica_context().replica_id.unique_id)

    def check_health(self) -> None:
        """Raise RuntimeError when the engine's thread has ended or is stuck in a step: Ray starts another replica."""
        from .async_engine import FAILED, STUCK

        if (status := self.service.engine.status) in (FAILED, STUCK):
            raise RuntimeError(f"the engine is {status}")

    async def __del__(self) -> None:
        from .run import STOP_SECONDS

        if hasattr(self, "service"):
            self.service.close()
            await self.service.engine.close(STOP_SECONDS)
