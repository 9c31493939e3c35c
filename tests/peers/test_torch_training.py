"""Real runs: killed and resumed, and checkpoints that move between world sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from gloo import run_ranks
from helpers import json_lines
from peer_data import packed_numbers, packed_pets
from png import decode_png

from shardtool.torch import ResumableLoader, ShardBatchSampler, ShardDataset, ShardStream

HERE = Path(__file__).parent


def run_training(data: str, run: Path, *, num_steps: int, die_at: int = -1, workers: int = 0) -> int:
    """Exit code of a run with two ranks."""
    command = [sys.executable, str(HERE / "train_pets.py"), data, str(run), "2", str(num_steps), str(die_at)]
    done = subprocess.run([*command, str(workers)], capture_output=True, text=True, timeout=200, check=False)
    if die_at < 0:
        assert done.returncode == 0, done.stderr[-4000:]
    return done.returncode


def last_lines(run: Path, rank: int) -> dict[int, tuple[list[str], str]]:
    """{step: (keys, loss)} as the last process that reached a step saw it."""
    return {line["step"]: (line["keys"], line["loss"]) for line in json_lines(run / f"rank-{rank}.jsonl")}


def test_a_killed_run_sees_the_same_batches_and_reaches_the_same_loss(tmp_path: Path) -> None:
    data = packed_pets(tmp_path)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_training(data, whole, num_steps=14)
    assert run_training(data, broken, num_steps=14, die_at=6, workers=2) != 0
    assert run_training(data, broken, num_steps=14, die_at=11, workers=1) != 0
    run_training(data, broken, num_steps=14)
    for rank in range(2):
        wanted, found = last_lines(whole, rank), last_lines(broken, rank)
        assert found == wanted
        assert sorted(found) == list(range(1, 15))
    losses = [float.fromhex(loss) for _, loss in last_lines(whole, 0).values()]
    assert losses[-1] < losses[0], "it learns"
    lines = json_lines(broken / "rank-0.jsonl")
    assert len(lines) > 14, "some steps were done twice, from the checkpoint before"


def test_the_picture_decoder_agrees_with_how_the_pictures_were_drawn(tmp_path: Path) -> None:
    sample = ShardDataset(packed_pets(tmp_path), decode=True)[0]
    picture = decode_png(sample["png"])
    assert picture.shape == (3, sample["json"]["height"], sample["json"]["width"]) if "json" in sample else True
    assert 0 <= float(picture.min()) <= float(picture.max()) <= 1


def make_loader(data: str, kind: str, **options: Any) -> ResumableLoader:
    dataset = ShardDataset(data, decode=["txt"])
    choices = {"global_batch": 12, "seed": 3, "elastic": (4, 3, 2), **options}
    if kind == "stream":
        return ResumableLoader(ShardStream(dataset, **choices), num_workers=1, collate_fn=texts)
    return ResumableLoader(dataset, batch_sampler=ShardBatchSampler(dataset, **choices), collate_fn=texts)


def texts(batch: list[dict[str, str]]) -> dict[str, list[str]]:
    return {"txt": [sample["txt"] for sample in batch]}


def save(rank: int, world_size: int, data: str, folder: str, kind: str) -> None:
    loader = make_loader(data, kind)
    for number, batch in enumerate(loader):
        note(folder, world_size, rank, number, batch["txt"])
        if number == 4:
            break
    dcp.save({"loader": loader, "weights": torch.arange(4) + 0.0}, checkpoint_id=f"{folder}/saved")


def load(rank: int, world_size: int, data: str, folder: str, kind: str) -> None:
    loader = make_loader(data, kind)
    dcp.load({"loader": loader, "weights": torch.zeros(4)}, checkpoint_id=f"{folder}/saved")
    assert loader.position == 60
    for number, batch in enumerate(loader):
        note(folder, world_size, rank, number, batch["txt"])


def note(folder: str, world_size: int, rank: int, step: int, numbers: list[str]) -> None:
    with (Path(folder) / f"seen-{world_size}-{rank}").open("a") as file:
        file.writelines(f"{step} {number}\n" for number in numbers)


def seen(folder: Path, world_size: int) -> list[str]:
    lines = [(folder / f"seen-{world_size}-{rank}").read_text().splitlines() for rank in range(world_size)]
    return [line.split()[1] for part in lines for line in part]


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_checkpoint_of_4_ranks_goes_on_with_3_and_with_2(tmp_path: Path, kind: str) -> None:
    data = packed_numbers(tmp_path, 144)
    run_ranks(4, tmp_path, save, data, str(tmp_path), kind)
    before = seen(tmp_path, 4)
    assert len(before) == len(set(before)) == 60
    for world_size in (3, 2):
        run_ranks(world_size, tmp_path, load, data, str(tmp_path), kind)
        after = seen(tmp_path, world_size)
        assert len(after) == 84
        assert set(before) | set(after) == set(map(str, range(144))), "each sample of the epoch once"
