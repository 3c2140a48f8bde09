"""What copies, launches and nodes of a graph cost on a device, by the calls of its driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ferrum.kernels.cuda.device_memory import DeviceMemory
from ferrum.kernels.cuda.driver import Driver, Event
from ferrum.kernels.cuda.launches import Images, Launch, Launcher

Say = Callable[..., None]


def platform(emulated: bool) -> tuple[Driver, Images]:
    """Return the device and the code of its modules, compiled from the sources of the repository."""
    if emulated:
        from emulated_cuda import EmulatedDriver, EmulatedImages

        return EmulatedDriver(), EmulatedImages()
    from ferrum.kernels.cuda.device_code import DeviceCode

    driver = Driver(0)
    sources = Path(__file__).resolve().parents[2] / "native" / "cuda"
    return driver, DeviceCode(driver.capability, sources)


def seconds(driver: Driver, work: Callable[[], Any]) -> float:
    """Return the seconds that a device takes for work, the best of three."""
    best = float("inf")
    for _ in range(3):
        begun, ended = Event.of(driver, timed=True), Event.of(driver, timed=True)
        begun.record()
        work()
        ended.record()
        ended.wait()
        best = min(best, begun.seconds_until(ended))
    return max(best, 1e-9)


def memory_rate(driver: Driver, nbytes: int) -> float:
    """Return the bytes that a device's memory moves in a second, reads and writes of a copy together."""
    memory = DeviceMemory(driver)
    source, target = memory.zeros(nbytes), memory.zeros(nbytes)
    return 2 * nbytes / seconds(driver, lambda: memory.copy(target, source, nbytes))


def report(say: Say, emulated: bool) -> None:
    """Report the device and its costs."""
    driver, images = platform(emulated)
    free, total = driver.memory()
    say("device", driver.name, capability="{}.{}".format(*driver.capability), multiprocessors=driver.multiprocessors)
    say("driver", f"for CUDA {driver.version / 1000:.1f}")
    say("memory", total / (1 << 30), "GiB", free=free)
    nbytes = 1 << (20 if emulated else 30)
    say("memory moved by copies", memory_rate(driver, nbytes) / 1e9, "GB/s")
    memory = DeviceMemory(driver)
    host, address = np.zeros(nbytes // 4, np.uint8), memory.take(nbytes)
    say("upload", len(host) / seconds(driver, lambda: memory.upload(host, address)) / 1e9, "GB/s")
    launch = Launch("step", "spread_pages", (1, 1, 1), (address, address, 0, 1, 1))
    count = 20 if emulated else 2000
    launches = Launcher(driver, images).prepared([launch] * count)
    say("launch", 1e6 * seconds(driver, launches.run) / count, "us")
    with driver.capture() as graph:
        launches.run()
    executable = graph()
    replayed = seconds(driver, lambda: driver.call("cuGraphLaunch", executable, driver.stream))
    say("node of a graph", 1e6 * replayed / count, "us")
