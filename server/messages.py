"""The vocabulary between the API process and a worker: plain data in MessagePack, nothing else crosses.

A message of an unknown tag or of a wrong shape is an error, so both sides must be the same version; they are,
because one starts the other.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from psd_core.admission import Limits
from psd_core.config import EngineConfig, QuantizationName
from psd_core.events import StepOutput
from psd_core.request import Request


class WorkerConfig(msgspec.Struct, frozen=True):
    """What a worker is told on its command line."""

    checkpoint: str
    tokenizer: str  # folder with the tokenizer's files
    dtype: str
    device: str
    replica_index: int  # spreads replicas over GPUs
    engine: EngineConfig
    log_level: str
    log_format: str
    address: str  # ipc:// address of the API process
    threads: int = 0  # of torch; 0: what measures faster, at most `max_threads`
    max_threads: int = 0  # 0 leaves them to torch and its environment
    begun_fd: int = -1  # pipe for the ids of requests whose first forward is about to run, one per line
    tensor_parallel_size: int = 1  # processes that hold the model together
    rank: int = 0  # of this one; the first is the worker that the API process talks to
    meeting: str = ""  # file by which the ranks find each other
    compiles: bool = False  # the layers go through torch.compile
    cuda_graphs: bool = False  # denoising forwards are recorded and repeated
    quantization: QuantizationName = "none"

    @property
    def path(self) -> Path:
        """The checkpoint folder."""
        return Path(self.checkpoint)


class Add(msgspec.Struct, frozen=True, tag="add"):
    """API → worker: queue a request."""

    request: Request
    sent_seconds: float  # on the clock of time.monotonic, which all processes of a machine share


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """API → worker: end a request at the next step; unknown ids are ignored."""

    request_id: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """API → worker: answer with Alive. One that is in a forward answers after it."""


class ModelFacts(msgspec.Struct, frozen=True):
    """What a loaded model is, for banner, admission and /v1/models."""

    architecture: str
    num_parameters: int
    dtype: str  # of the activations, and of what is not quantised
    quantization: QuantizationName
    device: str
    eos_ids: tuple[int, ...]
    limits: Limits
    load_seconds: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Worker → API: the model is loaded."""

    facts: ModelFacts


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Worker → API: the engine does not take the request."""

    request_id: str
    param: str
    code: str
    message: str


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Worker → API: the answer to Ping."""


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """Worker → API: what one engine step produced."""

    output: StepOutput


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """Worker → API: the worker ends. `is_final`: starting it again would end the same way."""

    message: str
    is_final: bool


ToWorker = Add | Cancel | Ping
ToServer = Ready | Refused | Alive | Stepped | Broken

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_server = msgspec.msgpack.Decoder(ToServer)


def encode(message: ToWorker | ToServer) -> bytes:
    """To bytes."""
    return _encoder.encode(message)


def decode_to_worker(data: bytes) -> ToWorker:
    """A message from the API process."""
    return _to_worker.decode(data)


def decode_to_server(data: bytes) -> ToServer:
    """A message from a worker."""
    return _to_server.decode(data)


def encode_config(config: WorkerConfig) -> str:
    """As it stands on a worker's command line."""
    return msgspec.json.encode(config).decode()


def decode_config(text: str) -> WorkerConfig:
    """The inverse of `encode_config`."""
    return msgspec.json.decode(text, type=WorkerConfig)
