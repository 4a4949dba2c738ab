"""The command stream on stock Kompute 0.9: correct, but slower than `recorder`.

Stock Kompute offers no barrier between dispatches, no copies of regions, and does not wait without holding the
interpreter lock.  So a sequence ends, and is waited for, wherever the hazard tracker asks for a barrier, and
transfers go through a device tensor and the `copy` kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ag.engine.arena import OFFSET_BITS
from ag.engine.backend import Event, Meter
from ag.engine.backends.vulkan.hazards import HazardTracker
from ag.engine.backends.vulkan.loader import check_not_forked, kompute
from ag.engine.backends.vulkan.pipelines import Kernels
from ag.engine.backends.vulkan.recorder import Command, Words
from ag.engine.kernels.elementwise import copy
from ag.errors import DeviceError

__all__ = ["StockRecorder"]

_STAGING_WORDS = 1 << 18
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class StockRecorder:
    """Command stream of one device, with the interface of `Recorder`."""

    def __init__(self, manager: Any, name: str, segments: list[Any], kernels: Kernels) -> None:
        self._manager = manager
        self._name = name
        self._segments = segments
        self._kp = kompute()
        self._tracker = HazardTracker()
        self._waiting: list[Command] = []
        self._staging: Any = None
        self._kernels = kernels  # for the one that moves words between staging and arena
        self.in_flight = 0
        self.barriers = 0
        self.submits = 0
        self.lost = False  # stock Kompute does not notice
        self.timestamps = False  # they are not sound
        self.timing = None

    def dispatch(self, command: Command) -> None:
        """Note a dispatch; earlier ones run first if it depends on them."""
        if self._tracker.launch(command.reads, command.writes):
            self.barriers += 1
            self._run_waiting()
        self._waiting.append(command)

    def _run_waiting(self) -> None:
        if not self._waiting:
            return
        self._evaluate([self._kp.OpAlgoDispatch(c.algorithm, np.frombuffer(c.push, np.uint32))
                        for c in self._waiting])
        self._waiting.clear()

    def _evaluate(self, operations: list[Any]) -> None:
        check_not_forked(self._name)
        sequence = self._manager.sequence()  # a used sequence must not be recorded again
        for operation in operations:
            sequence.record(operation)
        sequence.eval()
        self.submits += 1

    def submit(self) -> None:
        """Run what was noted."""
        self._run_waiting()
        self._tracker.barrier()

    def wait(self) -> None:
        """Run what was noted; stock Kompute always waits."""
        self.submit()

    def retime(self, events: list[Event] | None) -> None:
        """Refuse to time commands, each of which stock Kompute may wait for by itself."""
        if events is not None:
            raise DeviceError(f"profile: {self._name} runs on stock Kompute, whose timestamps are not sound; install "
                              f"the patched one with `pip install ./third_party/kp`.")

    def meter(self, meter: Meter | None) -> None:
        """Nothing is metered without timestamps."""

    def build(self, commands: list[Command]) -> list[Command]:
        """A program: the commands, run anew on every play."""
        return list(commands)

    def play(self, commands: list[Command]) -> None:
        """Run a program."""
        for command in commands:
            self.dispatch(command)

    def upload(self, address: int, words: Words) -> None:
        """Copy host words to an arena address."""
        self.submit()
        staging = self._staging_tensor()
        for start in range(0, words.size, _STAGING_WORDS):
            part = words[start : start + _STAGING_WORDS]
            staging.data()[: part.size] = part
            self._evaluate([self._kp.OpTensorSyncDevice([staging])])
            self._copy(part.size, to=address + 4 * start)

    def assign(self, target: int, source: int, count: int) -> None:
        """Copy words between arena addresses."""
        self.submit()
        self._copy(count, to=target, frm=source)

    def download(self, address: int, count: int) -> Words:
        """Words at an arena address."""
        self.submit()
        staging = self._staging_tensor()
        result = np.empty(count, np.uint32)
        for start in range(0, count, _STAGING_WORDS):
            length = min(_STAGING_WORDS, count - start)
            self._copy(length, frm=address + 4 * start)
            self._evaluate([self._kp.OpTensorSyncLocal([staging])])
            result[start : start + length] = staging.data()[:length]
        return result

    def _staging_tensor(self) -> Any:
        if self._staging is None:
            self._staging = self._manager.tensor_t(np.zeros(_STAGING_WORDS, np.uint32), self._kp.TensorTypes.device)
        return self._staging

    def _copy(self, count: int, to: int | None = None, frm: int | None = None) -> None:
        """Run the copy kernel between arena addresses; None is the staging tensor."""
        plan = self._kernels.plan(copy, ((count,), (count,)), {}, [])
        sides = [to, frm]
        segments = tuple(-1 if a is None else a >> OFFSET_BITS for a in sides)
        tensors = [self._staging if s < 0 else self._segments[s] for s in segments]
        push = plan.push([0 if a is None else (a & _OFFSET_MASK) // 4 for a in sides])
        algorithm = self._kernels.algorithm(plan, segments, tensors)
        self._evaluate([self._kp.OpAlgoDispatch(algorithm, np.frombuffer(push, np.uint32))])
