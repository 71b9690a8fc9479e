"""A model shared by two processes decodes as one process does: logits to rounding, tokens exactly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from psd_core.config import CacheName, DecoderConfig, EngineConfig
from psd_core.errors import CheckpointError, ConfigError
from psd_core.models.experts import Experts
from psd_core.models.group import Alone
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model, read_checkpoint
from psd_core.models.memory import rank_bytes
from psd_core.models.published import published_spec
from psd_core.models.shard import Shard, check_shards, kept
from psd_core.request import Request, SamplingParams
from tests.engine.drive import Driver
from tests.engine.openpangu import write_openpangu
from tests.engine.ranks import QUANTISED, OtherHalf, quantization_of
from tests.engine.tiny import tiny_spec

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
SHARED = ("llada", "llada_tied", "dream", "sdar", "llada2", "lladamoe")
OPENPANGU = "openpangu"  # with a bias behind the attention, which only one of the ranks may add
UNEVEN = "uneven"  # LLaDA with a vocabulary that two ranks cannot halve
DAMAGED = "damaged"  # LLaDA with a value that is not finite in what rank 1 keeps


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    uneven, damaged, quantised = (
        Path(shutil.copytree(GOLDEN / "llada" / "ckpt", folder / name)) for name in (UNEVEN, DAMAGED, QUANTISED)
    )
    for file in uneven.glob("*.safetensors"):
        tensors = load_file(file)
        save_file({name: tensor[:511] if len(tensor) == 512 else tensor for name, tensor in tensors.items()}, file)
    config = json.loads((uneven / "config.json").read_text())
    (uneven / "config.json").write_text(json.dumps(config | {"vocab_size": 511, "embedding_size": 511}))
    for file in damaged.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if name.endswith("blocks.0.q_proj.weight"):
                tensor[-1, -1] = torch.nan
        save_file(tensors, file)
    made_up = folder / OPENPANGU
    made_up.mkdir()
    write_openpangu(made_up, 512, 511, mask_token_id=511)
    golden = {name: GOLDEN / name / "ckpt" for name in SHARED}
    return golden | {OPENPANGU: made_up, UNEVEN: uneven, QUANTISED: quantised, DAMAGED: damaged}


@pytest.fixture(scope="module")
def other_half(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherHalf]:
    with OtherHalf(list(checkpoints.values()), tmp_path_factory.mktemp("meetings")) as other:
        yield other


def requests_of(model: DiffusionDecoder) -> list[Request]:
    """Every cache mode with and without drafts, and what else changes a forward or the choice of tokens."""
    block_length = model.spec.block_length
    caches: tuple[CacheName, ...] = ("none", "causal") if block_length else ("none", "prefix", "dual")
    plain = DecoderConfig(threshold=0.4, block_length=block_length or 8)
    requests = []
    for cache in caches:
        for depth in (0, 3):
            decoder = replace(plain, cache=cache, draft_depth=depth)
            requests.append(Request(f"{cache} {depth}", tuple(range(100, 117)), 20, decoder))
    prompt = (7, 300, 9, 44, 5)
    return [
        *requests,
        Request("branches", prompt, 12, replace(plain, policy="lopa", cache=caches[-1])),
        Request("sampled", prompt, 12, plain, sampling=SamplingParams(temperature=0.8, top_p=0.9, seed=3)),
        Request("biased", prompt, 12, plain, sampling=SamplingParams(frequency_penalty=0.7, logit_bias=((9, 4.0),))),
        Request("scored", prompt, 4, plain, score_prompt=True),
    ]


@pytest.mark.parametrize("name", [*SHARED, OPENPANGU, UNEVEN, QUANTISED])
def test_two_ranks_decode_as_one(name: str, checkpoints: dict[str, Path], other_half: OtherHalf) -> None:
    config = EngineConfig(max_num_batched_tokens=256, max_logit_rows=16)
    checkpoint = checkpoints[name]
    whole = load_model(checkpoint, "float32", "cpu", quantization=quantization_of(checkpoint))
    drivers = [Driver(model, config) for model in (other_half.load(checkpoint), whole)]
    for driver in drivers:
        for request in requests_of(whole):
            driver.add(request)
        driver.run()
        driver.add(Request("again", tuple(range(100, 117)), 12, requests_of(whole)[-5].decoder))  # reuses a context
        driver.run()
    shared, alone = drivers
    assert shared.forwards == alone.forwards
    for request_id, outcome in shared.outcomes.items():
        expected = alone.outcomes[request_id]
        assert outcome.token_ids == expected.token_ids, request_id
        assert outcome.logprobs == pytest.approx(expected.logprobs, abs=1e-4), request_id


def test_a_fault_in_another_rank_s_part_is_told(checkpoints: dict[str, Path], other_half: OtherHalf) -> None:
    with pytest.raises(CheckpointError, match=r"blocks\.0\.q_proj\.weight holds values that are not finite"):
        other_half.load(checkpoints[DAMAGED])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", SHARED)
def test_the_parts_of_all_ranks_are_the_model_once(name: str, size: int) -> None:
    checkpoint = GOLDEN / name / "ckpt"
    whole = load_model(checkpoint, "float32", "cpu")
    parts = [load_model(checkpoint, "float32", "cpu", group=Alone(Shard(rank, size))) for rank in range(size)]
    for rank, part in enumerate(parts):
        held = sum(parameter.numel() * parameter.element_size() for parameter in part.parameters())
        assert held == rank_bytes(whole.spec, torch.float32, Shard(rank, size))
    for parameter_name, parameter in whole.named_parameters():
        seen = torch.zeros_like(parameter)
        rebuilt = torch.zeros_like(parameter)
        for rank, part in enumerate(parts):
            piece = part.get_parameter(parameter_name)
            what = kept(parameter_name, whole.spec, Shard(rank, size))
            runs = what.rows or ((what.experts,) if what.experts else (range(parameter.shape[0]),))
            rows = [row for run in runs for row in run]
            columns = slice(None) if what.columns is None else slice(what.columns.start, what.columns.stop)
            index = (rows, columns) if parameter.dim() == 2 else (rows,)
            rebuilt[index] = piece[: len(rows)]
            seen[index] += 1
        assert torch.equal(rebuilt, parameter), parameter_name
        is_split = int(seen.min()) == int(seen.max()) == 1
        assert is_split or (seen == size).all(), f"{parameter_name} is neither split nor whole everywhere"


def test_a_rank_reads_only_what_it_keeps_of_experts_rows_and_vocabulary() -> None:
    totals: set[int] = set()
    checkpoint = GOLDEN / "llada2" / "ckpt"
    load_model(checkpoint, "float32", "cpu", on_progress=lambda done, total: totals.add(total))
    (whole,) = totals
    half = Alone(Shard(1, 2))
    model = load_model(checkpoint, "float32", "cpu", group=half, on_progress=lambda done, total: totals.add(total))
    (part,) = totals - {whole}
    assert part < 0.6 * whole
    experts = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Experts)]
    assert {expert.gate_up.shape[0] for expert in experts} == {8}


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("LLaDA-8B", 3, "must divide the model's 32 attention heads, got 3"),
        ("Dream-v0-7B", 7, "must divide the model's 4 key-value heads, got 7"),
        ("LLaDA2.0-flash", 8, "must divide the model's 4 key-value heads, got 8"),
        ("LLaDA-MoE-7B-A1B", 16, None),
        ("LLaDA2.0-flash", 4, None),
    ],
)
def test_what_ranks_cannot_share_evenly_is_refused(name: str, size: int, message: str | None) -> None:
    if message is None:
        check_shards(published_spec(name), size)
        return
    with pytest.raises(ConfigError, match=f"tensor_parallel_size {message}"):
        check_shards(published_spec(name), size)


def test_experts_that_ranks_cannot_share_evenly_are_refused() -> None:
    _, spec = read_checkpoint(GOLDEN / "lladamoe" / "ckpt")
    assert spec.experts is not None
    odd = replace(spec, experts=replace(spec.experts, num_experts=7))
    with pytest.raises(ConfigError, match="must divide the model's 7 experts, got 2"):
        check_shards(odd, 2)
    with pytest.raises(ConfigError, match="must divide the model's 49 features of the MLP, got 2"):
        check_shards(replace(tiny_spec(), mlp_size=49), 2)
