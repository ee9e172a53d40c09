"""The GPUs as NVIDIA's driver shows them: no bad field and no bad GPU hides the others.

Indexes are places in PCI order, as CUDA counts with CUDA_DEVICE_ORDER=PCI_BUS_ID. A GPU that fell
off the bus keeps its place, so that the others keep theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import pynvml  # type: ignore[import-untyped]

from llmgw.core.fleet.hardware import Gpu, gpu_class

MIB: Final = 1024 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that the driver lists on a GPU."""

    pid: int
    memory_mib: int | None
    """None where the driver does not say."""


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """One GPU at one moment."""

    gpu: Gpu
    processes: tuple[GpuProcess, ...] | None
    """None where the driver did not say."""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs at one moment, in PCI order."""

    gpus: tuple[SeenGpu, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def any_lost(self) -> bool:
        """Whether the driver has lost a GPU: then CUDA counts without it and indexes lie."""
        return any(seen.lost for seen in self.gpus)


class Nvml:
    """Reads the driver; blocking. Remembers what it saw, so that a lost GPU keeps its name."""

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._sys = sys
        self._open = False
        self._known: dict[int, Gpu] = {}
        """By the driver's own index."""

    def read(self) -> GpuReading:
        """Return all GPUs; none, without a warning, where there is no driver."""
        if not self._open:
            try:
                pynvml.nvmlInit()
            except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
                return self._gone("the driver is not loaded any more")
            except pynvml.NVMLError as error:
                return GpuReading(warnings=(f"NVML does not start: {error}",))
            self._open = True
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.close()
            return self._gone(f"the driver does not count its GPUs: {error}")
        return self._read_all(count)

    def close(self) -> None:
        """Let go of the driver; the next read starts anew."""
        if self._open:
            _ask(pynvml.nvmlShutdown)
        self._open = False

    def _read_all(self, count: int) -> GpuReading:
        seen: list[SeenGpu] = []
        warnings: list[str] = []
        for number in range(max(count, *(n + 1 for n in self._known), 0)):
            one = self._read_one(number)
            if one.lost:
                warnings.append(f"GPU {one.gpu.uuid}: {one.gpu.unusable}")
            else:
                self._known[number] = one.gpu
            seen.append(one)
        seen.sort(key=_pci_place)
        return GpuReading(
            tuple(_with_index(one, index) for index, one in enumerate(seen)), tuple(warnings)
        )

    def _gone(self, why: str) -> GpuReading:
        """Without a driver: nothing, or what was there before, all of it lost."""
        seen = [self._lost(number, why) for number in sorted(self._known)]
        seen.sort(key=_pci_place)
        warnings = (why,) if seen else ()
        return GpuReading(tuple(_with_index(s, i) for i, s in enumerate(seen)), warnings)

    def _read_one(self, number: int) -> SeenGpu:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            return self._lost(number, f"the driver has lost it: {error}")
        pci = _pci(handle)
        name = _ask(lambda: str(pynvml.nvmlDeviceGetName(handle))) or "unknown GPU"
        total_mib, used_mib = _memory(handle)
        gpu = Gpu(
            uuid=uuid,
            index=number,
            name=name,
            gpu_class=gpu_class(name, total_mib),
            memory_mib=total_mib,
            memory_used_mib=used_mib,
            compute_capability=_capability(handle),
            pci=pci,
            numa_node=self._numa(handle, pci),
            unusable=_mig(handle),
        )
        return SeenGpu(gpu, _processes(handle))

    def _lost(self, number: int, why: str) -> SeenGpu:
        known = self._known.get(number)
        if known is None:
            gpu = Gpu(f"lost-{number}", number, "lost GPU", "lost-unknown", unusable=why)
            return SeenGpu(gpu, None, lost=True)
        return SeenGpu(replace(known, memory_used_mib=None, unusable=why), None, lost=True)

    def _numa(self, handle: object, pci: str | None) -> int | None:
        node = _ask(lambda: int(pynvml.nvmlDeviceGetNumaNodeId(handle)))
        if node is None and pci is not None:
            try:
                path = self._sys / "bus/pci/devices" / pci / "numa_node"
                node = int(path.read_text())
            except (OSError, ValueError):
                return None
        return node if node is not None and node >= 0 else None


def _ask(call: Callable[[], T]) -> T | None:
    """Return the driver's answer, None where it has none: one bad field is that field's alone."""
    try:
        return call()
    except (pynvml.NVMLError, ValueError, TypeError, UnicodeDecodeError):
        return None


def _memory(handle: object) -> tuple[int | None, int | None]:
    info = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    if info is None:
        return None, None
    return int(info.total) // MIB, int(info.used) // MIB


def _capability(handle: object) -> tuple[int, int] | None:
    found = _ask(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return None if found is None else (int(found[0]), int(found[1]))


def _mig(handle: object) -> str:
    mode = _ask(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mode is not None and int(mode[0]) == 1:
        return "is in MIG mode, so it is not handed out whole"
    return ""


def _pci(handle: object) -> str | None:
    """Return the address as sysfs writes it: `0000:3d:00.0`."""
    info = _ask(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    if info is None:
        return None
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}"


def _processes(handle: object) -> tuple[GpuProcess, ...] | None:
    found = _ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if found is None:
        return None
    return tuple(
        GpuProcess(int(p.pid), None if p.usedGpuMemory is None else int(p.usedGpuMemory) // MIB)
        for p in found
    )


def _pci_place(seen: SeenGpu) -> tuple[str, int]:
    # Without an address the driver's own order is all there is; it is PCI's already.
    return (seen.gpu.pci or "", seen.gpu.index)


def _with_index(seen: SeenGpu, index: int) -> SeenGpu:
    old = seen.gpu
    if old.index == index:
        return seen
    return replace(seen, gpu=replace(old, index=index))
