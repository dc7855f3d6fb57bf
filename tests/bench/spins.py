"""Shows what GOMP_SPINCOUNT and a second OpenMP team cost: `python -m tests.bench.spins`, with nothing else running.

One line a count: microseconds of a round of padded expert products and small operations on two threads, on idle cores
and beside one busy program; then the same after the main thread has computed too, as a second team.
"""

from __future__ import annotations

import os
import subprocess
import sys

COUNTS = ("1000", "6000", "10000", "20000", "300000")
ROUNDS = """
import sys, threading, time, torch
weights = [torch.randn(32, 256, 256) for _ in range(9)]
x, row, wide = torch.randn(32, 5, 256), torch.randn(40, 256), torch.randn(256, 1024)

def work(told):
    torch.set_num_threads(2)
    with torch.inference_mode():
        for weight in weights * 3:
            torch.bmm(x, weight)
        begin = time.perf_counter()
        for _ in range(100):
            for weight in weights[:3]:
                torch.bmm(x, weight)
                y = torch.nn.functional.silu(row @ wide)
                y = y * y + 1
        if told:
            print(round((time.perf_counter() - begin) / 300 * 1e6), flush=True)

if "two" in sys.argv:
    work(False)
thread = threading.Thread(target=work, args=(True,))
thread.start()
thread.join()
"""


def round_us(count: str, *words: str) -> str:
    """Microseconds of a round, in a process of its own."""
    command = [sys.executable, "-c", ROUNDS, *words]
    environment = {**os.environ, "GOMP_SPINCOUNT": count}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Prints the table."""
    print("spins   idle cores   beside a busy program   idle, two teams   (us a round)")
    for count in COUNTS:
        idle = round_us(count)
        busy = subprocess.Popen([sys.executable, "-c", "while True: sum(range(100000))"])
        try:
            contended = round_us(count)
        finally:
            busy.kill()
            busy.wait()
        print(f"{count:>6}{idle:>12}{contended:>22}{round_us(count, 'two'):>20}")


if __name__ == "__main__":
    main()
