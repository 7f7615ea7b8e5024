"""A slow, lossy link between two network namespaces, for kernels whose `tc` cannot delay or lose packets.

python lossy_link.py SPACE DEVICE ADDRESS SPACE DEVICE ADDRESS LOG

Makes a TUN device in each namespace and carries IP packets between them until it is stopped: 8 Mbit/s and 10
ms each way, one packet in 200 lost. At the end it writes how many packets it carried and lost to LOG.
"""

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

RATE, DELAY, LOSS = 8e6, 0.01, 0.005  # bits per second, seconds, share of the packets
QUEUE = 0.2  # seconds of traffic that may wait; what comes on top is lost, as in a router
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
LIBC = ctypes.CDLL(None, use_errno=True)


def open_device(space: str, device: str, address: str) -> int:
    """Make a TUN device in a namespace and return its file."""
    with Path(f"/run/netns/{space}").open("rb") as namespace:
        if LIBC.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "addr", "add", address, "dev", device], check=True)
    subprocess.run(["ip", "link", "set", device, "up"], check=True)
    return file


def carry(one: int, other: int, log: Path) -> None:
    """Carry packets until a signal comes."""
    across, free_at = {one: other, other: one}, {one: 0.0, other: 0.0}
    waiting: list[tuple[float, int, int, bytes]] = []
    chance, order = random.Random(7), itertools.count()
    carried = lost = 0
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    while not stopping:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
        for file in select.select([one, other], [], [], min(timeout, 0.2))[0]:
            try:
                packet = os.read(file, 65536)
            except OSError:
                continue  # the device is down
            now = time.monotonic()
            leaves = max(now, free_at[file]) + len(packet) * 8 / RATE
            if chance.random() < LOSS or leaves - now > QUEUE:
                lost += 1
                continue
            free_at[file] = leaves
            heapq.heappush(waiting, (leaves + DELAY, next(order), across[file], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(waiting)
            try:
                os.write(to, packet)
                carried += 1
            except OSError:
                lost += 1  # the device is down
    log.write_text(f"{carried} {lost}")


if __name__ == "__main__":
    near, far = open_device(*sys.argv[1:4]), open_device(*sys.argv[4:7])
    written = Path(sys.argv[7])
    written.touch()  # the link is there
    carry(near, far, written)
