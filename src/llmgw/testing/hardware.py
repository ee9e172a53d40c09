"""Hardware that a test makes up: GPUs behind the real pynvml or without it, folders like /sys."""

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from llmgw.agent.discovery.nvml import GpuProcess, GpuReading, SeenGpu
from llmgw.core.fleet.hardware import Gpu

GPU_CLASS: Final = "l40s-45g"
TOTAL_MIB: Final = 46068
COMPILE_S_MAX: Final = 60.0
LIBRARY: Final = "libnvidia-ml.so.1"
STATE_VARIABLE: Final = "LLMGW_FAKE_NVML"


def build_nvml(folder: Path) -> Path:
    """Compile the scripted driver library into a folder; put that into LD_LIBRARY_PATH."""
    source = Path(__file__).parent / "nvml" / "scripted_nvml.c"
    argv = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run(
        [*argv, "-o", str(folder / LIBRARY), str(source)], check=True, timeout=COMPILE_S_MAX
    )
    return folder


@dataclass
class ScriptedDriver:
    """A gpus.Driver whose GPUs a test changes at will."""

    gpus: dict[str, SeenGpu] = field(default_factory=dict)

    @classmethod
    def with_gpus(cls, count: int, used_mib: int = 0) -> "ScriptedDriver":
        """Return one with so many idle GPUs, `GPU-0` and on."""
        driver = cls()
        for index in range(count):
            gpu = Gpu(
                f"GPU-{index}",
                index,
                "NVIDIA L40S",
                GPU_CLASS,
                memory_mib=TOTAL_MIB,
                memory_used_mib=used_mib,
            )
            driver.gpus[gpu.uuid] = SeenGpu(gpu, ())
        return driver

    def read(self) -> GpuReading:
        """See gpus.Driver."""
        return GpuReading(tuple(self.gpus.values()))

    def use(self, uuid: str, used_mib: int, processes: Mapping[int, int | None]) -> None:
        """Have a GPU show this much used memory and these processes."""
        seen = self.gpus[uuid]
        listed = tuple(GpuProcess(pid, mib) for pid, mib in processes.items())
        gpu = replace(seen.gpu, memory_used_mib=used_mib)
        self.gpus[uuid] = replace(seen, gpu=gpu, processes=listed)

    def lose(self, uuid: str) -> None:
        """Have a GPU fall off the bus."""
        seen = self.gpus[uuid]
        gpu = replace(seen.gpu, unusable="the driver has lost it")
        self.gpus[uuid] = SeenGpu(gpu, None, lost=True)


def rdma_tree(sys: Path, files: Iterable[tuple[str, str]]) -> Path:
    """Write files under class/infiniband of a made-up /sys."""
    for name, text in files:
        path = sys / "class/infiniband" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sys
