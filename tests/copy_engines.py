"""Copy engines for gloo ranks: memory that processes share, and a driver that copies at once.

    with on_the_cpu(folder):    inside, comm/copies.py works as on a GPU: slots that other ranks write, flags
                                that are written and waited for, copies of rows from address to address

A stream does what it is asked before the next line runs, so a wait that nobody ends is a TimeoutError.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from ringmark.comm import driver
from ringmark.comm.mesh import Group
from ringmark.comm.symmetric import Slot

WAIT_S = 60.0


class Driver:
    """The calls of libcuda that comm/driver.py makes."""

    def cuMemcpyAsync(self, into: int, source: int, num_bytes: int, stream: int) -> int:  # noqa: N802
        ctypes.memmove(into, source, num_bytes)
        return 0

    def cuMemcpy2DAsync_v2(self, job: Any, stream: int) -> int:  # noqa: N802
        one = job._obj
        for row in range(one.height):
            ctypes.memmove(
                one.into_device + row * one.into_pitch, one.from_device + row * one.from_pitch, one.width
            )
        return 0

    def cuStreamWriteValue32_v2(self, stream: int, address: int, number: int, how: int) -> int:  # noqa: N802
        ctypes.c_uint32.from_address(address).value = number
        return 0

    def cuStreamWaitValue32_v2(self, stream: int, address: int, number: int, how: int) -> int:  # noqa: N802
        ends = time.monotonic() + WAIT_S
        while ctypes.c_uint32.from_address(address).value < number:
            if time.monotonic() > ends:
                raise TimeoutError(f"nobody has written {number}")
            time.sleep(0.0001)
        return 0


class Memory:
    """Slots as files of a folder that all ranks map."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[tuple[int, ...], list[int]] = {}

    @property
    def num_slots(self) -> int:
        """How many this rank has made."""
        return sum(map(len, self.made.values()))

    def make_slot(self, group: Group, device: torch.device, num_bytes: int) -> Slot:
        made = self.made.setdefault(group.members, [])
        made.append(num_bytes)
        sizes: list[Any] = [None] * group.size
        dist.all_gather_object(sizes, num_bytes, group.process_group)
        assert len(set(sizes)) == 1, f"members make slots of {sizes} bytes together"
        name = "-".join(map(str, group.members))
        paths = [self.folder / f"{name}.{len(made)}.{position}" for position in range(group.size)]
        ours = torch.from_file(str(paths[group.position]), shared=True, size=num_bytes, dtype=torch.uint8)
        ours.fill_(255)  # as a GPU's memory, it holds anything
        dist.barrier(group.process_group)
        others = [
            torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8) for path in paths
        ]
        others[group.position] = ours
        return Slot(ours, others)


@contextlib.contextmanager
def on_the_cpu(folder: Path) -> Iterator[Memory]:
    """Copy engines of this rank, between ranks that share the folder."""
    memory = Memory(folder)
    with (
        mock.patch("ringmark.comm.copies.make_slot", memory.make_slot),
        mock.patch.object(driver, "_driver", Driver),
        mock.patch("torch.cuda.Stream", mock.MagicMock()),
        mock.patch("torch.cuda.current_stream", mock.MagicMock()),
        mock.patch("torch.cuda.synchronize"),
    ):
        yield memory
