"""Settings of a server: command line first, then PSD_* environment, then the decoder file, then defaults. Resolved
once, then frozen.

This is the only file that reads the environment.
"""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from psd_core.admission import Limits
from psd_core.assets import demo_path
from psd_core.config import (
    AcceptanceName,
    CacheName,
    DecoderConfig,
    DraftDepth,
    DraftIncrement,
    EngineConfig,
    PolicyName,
    QuantizationName,
)
from psd_core.errors import ConfigError
from server.cores import usable_cores
from server.flags import FLAGS, Flag
from server.given import decoder_values, value_of
from server.keys import ApiKey, named_keys, read_key_file
from server.speedups import check_speedups
from server.tuning import DEFAULTS

DEMO_NAME = "psd-demo"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which checkpoint, and how it is loaded. `source` is a folder or a hub name."""

    source: str
    served_names: tuple[str, ...]
    tokenizer: str | None = None
    chat_template: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    replicas: int = 1
    quantization: QuantizationName = "none"
    tensor_parallel_size: int = 1
    threads: int = 0  # of torch, per worker; 0: what measures faster, at most `max_threads`
    max_threads: int = 0  # 0 leaves them to torch and its environment
    compiles: bool = False  # layers, by torch.compile
    cuda_graphs: bool = False
    forward_seconds: float = DEFAULTS.forward_seconds


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where and for whom the server listens."""

    host: str
    port: int
    root_path: str
    ssl_keyfile: str | None
    ssl_certfile: str | None
    allowed_origins: tuple[str, ...]
    api_keys: tuple[ApiKey, ...]  # none: everybody may call
    is_metrics_open: bool = False
    has_playground: bool = True
    max_body_bytes: int = DEFAULTS.max_body_bytes
    max_connections: int = DEFAULTS.max_connections
    ping_seconds: float = 0.0  # 0 sends no comments
    drain_seconds: float = DEFAULTS.drain_seconds
    max_key_seqs: int = 0  # open at once per key; 0 is no limit
    max_key_requests: int = 0  # per minute and key; 0 is no limit
    read_seconds: float = DEFAULTS.read_seconds
    stall_seconds: float = DEFAULTS.stall_seconds


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Defaults and limits of requests.

    `decoder` holds what a request does not set in its `psd` object. Where block length or cache were not given, the
    loaded model decides them: see `fit_decoder`.
    """

    decoder: DecoderConfig
    is_block_length_given: bool
    is_cache_given: bool
    seed: int | None  # None draws one per request
    default_max_tokens: int
    max_stop_strings: int
    max_waiting: int
    timeout_seconds: float  # in all; 0 never gives up
    queue_seconds: float  # until the first forward; 0 never gives up


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a server needs to know before it starts."""

    model: ModelSettings
    engine: EngineConfig
    requests: RequestSettings
    http: HttpSettings
    otlp_endpoint: str | None  # where traces go
    log_level: str
    log_format: str


def add_flags(parser: argparse.ArgumentParser, flags: Sequence[Flag] = FLAGS) -> None:
    """Add these flags. Values stay text here: `resolve` parses them, wherever they come from."""
    for flag in flags:
        default = f" (default: {flag.default})" if flag.default not in (None, (), "") else ""
        parser.add_argument(
            flag.option,
            dest=flag.name,
            action="append",
            nargs="?" if flag.is_switch else None,
            const="true" if flag.is_switch else None,
            metavar="VALUE",
            help=f"{flag.help}{default} [{flag.variable}]".replace("%", "%%"),
        )


def resolve(given: Mapping[str, list[str] | None], environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from the command line's texts and the environment; ConfigError names the flag, limit and value."""
    variables = os.environ if environment is None else environment
    values = {flag.name: value_of(flag, given.get(flag.name), variables) for flag in FLAGS}
    path = cast("str | None", values["decoder_config"])
    if path is not None:
        values |= decoder_values(Path(path), given, variables)
    is_torchs_own = not values["threads"] and bool(variables.get("OMP_NUM_THREADS"))
    processes = cast(int, values["replicas"]) * cast(int, values["tensor_parallel_size"])
    values["max_threads"] = 0 if is_torchs_own else max(1, usable_cores() // processes)
    return _build(values)


def client_key(given: Mapping[str, list[str] | None], environment: Mapping[str, str] | None = None) -> str | None:
    """The key to send to another server: the first one given. `Settings` itself keeps no key in plain."""
    variables = os.environ if environment is None else environment
    (flag,) = (flag for flag in FLAGS if flag.name == "api_key")
    keys = cast("tuple[str, ...]", value_of(flag, given.get(flag.name), variables))
    return keys[0] if keys else None


def _build(values: Mapping[str, object]) -> Settings:
    if (values["ssl_keyfile"] is None) != (values["ssl_certfile"] is None):
        raise ConfigError("ssl_keyfile", "--ssl-keyfile and --ssl-certfile must be given together")
    for name in ("ssl_keyfile", "ssl_certfile"):
        path = cast("str | None", values[name])
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigError(name, f"--{name.replace('_', '-')} must be a readable file, got {path!r}")
    _check_tls(cast("str | None", values["ssl_certfile"]), cast("str | None", values["ssl_keyfile"]))
    return Settings(
        model=_model(values),
        engine=EngineConfig(
            max_num_seqs=cast(int, values["max_num_seqs"]),
            max_num_batched_tokens=cast(int, values["max_num_batched_tokens"]),
            max_refresh_tokens=cast(int, values["max_refresh_tokens"]),
            max_logit_rows=cast(int, values["max_logit_rows"]),
            max_model_len=cast("int | None", values["max_model_len"]),
            max_cache_tokens=cast("int | None", values["max_cache_tokens"]),
            prefix_cache=cast("bool", values["prefix_cache"]),
        ),
        requests=RequestSettings(
            decoder=_decoder(values),
            is_block_length_given=values["block_length"] is not None,
            is_cache_given=values["cache"] is not None,
            seed=cast("int | None", values["seed"]),
            default_max_tokens=cast(int, values["default_max_tokens"]),
            max_stop_strings=cast(int, values["max_stop_strings"]),
            max_waiting=cast(int, values["max_waiting"]),
            timeout_seconds=cast(float, values["request_timeout"]),
            queue_seconds=cast(float, values["queue_timeout"]),
        ),
        http=HttpSettings(
            host=cast(str, values["host"]),
            port=cast(int, values["port"]),
            root_path=cast(str, values["root_path"]),
            ssl_keyfile=cast("str | None", values["ssl_keyfile"]),
            ssl_certfile=cast("str | None", values["ssl_certfile"]),
            allowed_origins=cast("tuple[str, ...]", values["allowed_origins"]),
            api_keys=_api_keys(values),
            max_key_seqs=cast(int, values["max_key_seqs"]),
            max_key_requests=cast(int, values["max_key_requests"]),
            is_metrics_open=cast(bool, values["open_metrics"]),
            has_playground=not cast(bool, values["no_playground"]),
            max_body_bytes=cast(int, values["max_body_bytes"]),
            max_connections=cast(int, values["max_connections"]),
            ping_seconds=cast(float, values["ping_interval"]),
            drain_seconds=cast(float, values["drain_timeout"]),
            read_seconds=cast(float, values["read_timeout"]),
            stall_seconds=cast(float, values["stream_stall_timeout"]),
        ),
        otlp_endpoint=cast("str | None", values["otlp_endpoint"]),
        log_level=cast(str, values["log_level"]),
        log_format=cast(str, values["log_format"]),
    )


def _check_tls(certfile: str | None, keyfile: str | None) -> None:
    """ConfigError unless the two belong together. A key behind a password is refused: nobody is there to type it."""
    if certfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        files = f"--ssl-certfile {certfile!r} and --ssl-keyfile {keyfile!r}"
        raise ConfigError("ssl_certfile", f"{files} cannot be used together: {error}") from None


def _api_keys(values: Mapping[str, object]) -> tuple[ApiKey, ...]:
    path = cast("str | None", values["api_key_file"])
    keys = named_keys(cast("tuple[str, ...]", values["api_key"])) + (() if path is None else read_key_file(path))
    for name in ("max_key_seqs", "max_key_requests"):
        if values[name] and not keys:
            raise ConfigError(name, f"--{name.replace('_', '-')} needs --api-key or --api-key-file")
    return keys


def fit_decoder(settings: RequestSettings, limits: Limits) -> DecoderConfig:
    """The default decoder of a loaded model. ConfigError if a given setting does not suit its attention."""
    decoder = settings.decoder
    if not settings.is_block_length_given and limits.block_length is not None:
        decoder = replace(decoder, block_length=limits.block_length)
    if not settings.is_cache_given:
        decoder = replace(decoder, cache="causal" if "causal" in limits.caches else "none")
    if limits.block_length is not None and decoder.block_length != limits.block_length:
        raise ConfigError(
            "block_length",
            f"--block-length must be {limits.block_length} for this model, got {decoder.block_length}",
        )
    if decoder.cache not in limits.caches:
        raise ConfigError(
            "cache", f"--cache must be one of {', '.join(limits.caches)} for this model, got {decoder.cache}"
        )
    return decoder


def _decoder(values: Mapping[str, object]) -> DecoderConfig:
    default = DecoderConfig()
    try:
        return DecoderConfig(
            policy=cast(PolicyName, values["policy"]),
            k=cast(int, values["k"]),
            threshold=cast(float, values["threshold"]),
            factor=cast(float, values["factor"]),
            gamma=cast(float, values["gamma"]),
            relaxed_threshold=cast(float, values["relaxed_threshold"]),
            window=cast(int, values["window"]),
            branches=cast(int, values["branches"]),
            block_length=cast(int, values["block_length"] or default.block_length),
            draft_depth=cast(DraftDepth, values["draft_depth"]),
            draft_increment=cast(DraftIncrement, values["draft_increment"]),
            acceptance=cast(AcceptanceName, values["acceptance"]),
            cache=cast(CacheName, values["cache"] or default.cache),
            canvas_blocks=cast("int | None", values["canvas_blocks"]),
            edit_threshold=cast("float | None", values["edit_threshold"]),
            max_edit_passes=cast(int, values["max_edit_passes"]),
        )
    except ConfigError as error:
        raise ConfigError(error.param, f"--{error.param.replace('_', '-')}: {error.message}") from None


def _model(values: Mapping[str, object]) -> ModelSettings:
    if cast(int, values["tensor_parallel_size"]) > 1 and values["device"] not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            "device",
            f"--device must be auto, cpu or cuda where --tensor-parallel-size is above 1, got {values['device']!r}",
        )
    check_speedups(values)
    given = cast("str | None", values["model"])
    source = str(demo_path()) if given is None else given
    return ModelSettings(
        source=source,
        served_names=cast("tuple[str, ...]", values["served_model_name"]) or (_default_name(given),),
        tokenizer=cast("str | None", values["tokenizer"]),
        chat_template=cast("str | None", values["chat_template"]),
        dtype=cast(str, values["dtype"]),
        quantization=cast(QuantizationName, values["quantization"]),
        device=cast(str, values["device"]),
        replicas=cast(int, values["replicas"]),
        tensor_parallel_size=cast(int, values["tensor_parallel_size"]),
        threads=cast(int, values["threads"]),
        max_threads=cast(int, values["max_threads"]),
        compiles=cast(bool, values["compile"]),
        cuda_graphs=cast(bool, values["cuda_graphs"]),
        forward_seconds=cast(float, values["forward_timeout"]),
    )


def _default_name(model: str | None) -> str:
    """The built-in model's name, a folder's last part, or the hub name as given."""
    if model is None:
        return DEMO_NAME
    return Path(model).resolve().name if Path(model).is_dir() else model
