"""What the routes share: built by the application, found on `request.app.state`, never global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from starlette.requests import HTTPConnection

from server.admission import Admission
from server.errors import ApiError, overloaded, unavailable
from server.metrics import Metrics
from server.pool import WorkerPool
from server.quota import Quotas
from server.settings import Settings
from server.tracing import Traces


@dataclass(slots=True)
class AppState:
    """Owner of what outlives a request. `admission` is None until the model is loaded."""

    settings: Settings
    metrics: Metrics
    pool: WorkerPool
    quotas: Quotas
    traces: Traces
    started_at: int  # Unix seconds
    admission: Admission | None = None
    is_draining: bool = False
    failure: str | None = None  # why the server will never be ready

    @property
    def status(self) -> str:
        """One word for /health: ok, loading, restarting, draining or failed."""
        if self.failure is not None or self.pool.failure is not None:
            return "failed"
        if self.is_draining:
            return "draining"
        if self.pool.is_ready:
            return "ok"
        return "restarting" if "restarting" in self.pool.states else "loading"

    def require_ready(self) -> Admission:
        """ApiError 503 unless a request would be served now."""
        if self.is_draining:
            raise unavailable("shutting_down", "the server is shutting down")
        if self.admission is None or not self.pool.is_ready:
            raise unavailable("worker_unavailable", f"the model is not ready: {self.status}; try again soon")
        return self.admission

    def require_model(self, name: str) -> None:
        """ApiError 404 unless the name is served."""
        served = self.settings.model.served_names
        if name not in served:
            raise ApiError(
                404, "model_not_found", f"model {name[:200]!r} does not exist; served: {', '.join(served)}", "model"
            )

    def require_room(self, num_sequences: int) -> None:
        """ApiError 429 if the sequences would overfill the queue."""
        limit = self.max_open
        if self.pool.num_open + num_sequences > limit:
            raise overloaded(
                f"{self.pool.num_open} sequences are open, {num_sequences} more would exceed {limit}; try again soon"
            )

    @property
    def max_open(self) -> int:
        """Sequences that may run or wait at once, over all replicas."""
        model, engine = self.settings.model, self.settings.engine
        return engine.max_num_seqs * model.replicas + self.settings.requests.max_waiting


def state_of(connection: HTTPConnection) -> AppState:
    """The state of the application that serves the connection."""
    return cast(AppState, connection.app.state.psd)
