"""A whole training run over packed pictures, two ranks, that may be killed at a step: what the tests start and kill.

    train_pets.py DATA RUN WORLD_SIZE NUM_STEPS DIE_AT [WORKERS]

Each rank writes RUN/rank-R.jsonl, one line a step: keys of its batch and the loss, exact. Checkpoints with
torch.distributed.checkpoint every four steps; goes on from the last one there is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from gloo import run_ranks
from png import decode_png
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy
from torch.nn.parallel import DistributedDataParallel

from shardtool.torch import ResumableLoader, ShardDataset, ShardStream

EVERY = 4


def sample_of(sample: dict[str, Any]) -> dict[str, Any]:
    """Key, picture of 8 x 8, class."""
    picture = adaptive_avg_pool2d(decode_png(sample["png"]), 8)
    return {"key": sample["__key__"], "picture": picture, "label": sample["cls"]}


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4)
    )
    return DistributedDataParallel(layers)


def train(rank: int, world_size: int, data: str, run: str, num_steps: int, die_at: int, workers: int) -> None:
    dataset = ShardDataset(data, parts=["png", "cls"], decode=["cls"], transform=sample_of)
    stream = ShardStream(dataset, global_batch=12, seed=5, elastic=(2,))
    loader = ResumableLoader(stream, num_workers=workers)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    step = resume(state, Path(run))
    while step < num_steps:
        for batch in loader:
            if step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = cross_entropy(model(batch["picture"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            log(Path(run) / f"rank-{rank}.jsonl", {"step": step, "keys": batch["key"], "loss": loss.item().hex()})
            if step % EVERY == 0:
                dcp.save(tensors(state), checkpoint_id=Path(run) / f"step-{step:04d}")
            if step == num_steps:
                return


def tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": state["model"].state_dict(),
        "momentum": {
            str(number): held.get("momentum_buffer")
            for number, held in state["optimizer"].state_dict()["state"].items()
        },
        "loader": state["loader"],
    }


def resume(state: dict[str, Any], run: Path) -> int:
    """Load the last complete checkpoint; returns its step."""
    found = sorted(folder for folder in run.glob("step-*") if (folder / ".metadata").exists())
    if not found:
        return 0
    optimizer = state["optimizer"]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    loaded = tensors(state)
    dcp.load(loaded, checkpoint_id=found[-1])  # in place
    return int(found[-1].name.partition("-")[2])


def log(path: Path, document: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(document) + "\n")


def main() -> None:
    data, run, world_size, num_steps, die_at, *workers = sys.argv[1:]
    Path(run).mkdir(exist_ok=True)
    arguments = (data, run, int(num_steps), int(die_at), int(workers[0]) if workers else 0)
    run_ranks(int(world_size), Path(run), train, *arguments)


if __name__ == "__main__":
    main()
