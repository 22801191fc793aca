"""Cost of the simulation per step of one worker: N=1000, K=4, M=2, erf, one sample a step.

Prints, all from one run on one machine: the loop that a user would write (nn.Module, optim.SGD),
the floor (torch draws the same number of float32 normals and does nothing else), the engine with a
single run and with 64, and their ratios; then what the products of a block cost alone, which is
most of what lies above the floor. In CPU time on one thread, and at the end by the clock with all
threads. `python benchmarks/sgd.py cuda` measures the same on a GPU, by the clock, with 4096 runs
beside, and the bandwidth of a copy.
"""

import os
import sys

os.environ |= {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}

import time

import numpy as np
import torch
from torch import nn

import gossipdyn as gd

N, K, M, RUNS = 1000, 4, 2, 64
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
PROBLEM = gd.Problem(gd.erf, v_star=np.ones(M), T=np.eye(M), eta=0.5)


class Committee(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.rows = nn.Linear(N, units, bias=False)
        nn.init.normal_(self.rows.weight)

    def forward(self, x):
        return torch.erf(self.rows(x) / (2 * N) ** 0.5).sum(-1)


def user_loop(steps):
    student, teacher = Committee(K).to(DEVICE), Committee(M).to(DEVICE)
    optimizer = torch.optim.SGD(student.parameters(), lr=PROBLEM.eta / 2)  # MSELoss has no 1/2
    loss = nn.MSELoss()
    for _ in range(steps):
        x = torch.randn(1, N, device=DEVICE)
        with torch.no_grad():
            y = teacher(x)
        optimizer.zero_grad()
        loss(student(x), y).backward()
        optimizer.step()


def floor(steps):
    samples = torch.empty(16, N, device=DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(0)
    for _ in range(steps // 16):
        samples.normal_(generator=generator)


def engine(runs):
    x0 = gd.random_start(PROBLEM, workers=1, students=K, N=N)
    sgd = gd.sgd(N=N, runs=runs, device=DEVICE)
    return lambda steps: gd.run(sgd, PROBLEM, x0, steps / runs / N)


def products(steps):
    """Fields, Gram matrices and updates of blocks of 16 steps for 64 workers, and nothing else."""
    rows = torch.zeros(RUNS, K + M, N, device=DEVICE)
    X = torch.randn(RUNS, 16, N, device=DEVICE)
    a = torch.zeros(RUNS, K, 16, device=DEVICE)
    for _ in range(steps // 16 // RUNS):
        torch.bmm(rows, X.mT)
        torch.bmm(X, X.mT)
        rows[:, :K].baddbmm_(a, X)


def seconds(work, steps, clock):
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    begin = clock()
    work(steps)
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    return clock() - begin


def microseconds(tasks, clock, repeats=7):
    """Least time of a step of each task; they take turns, so that all see the same machine."""
    for work, steps in tasks.values():
        seconds(work, steps // 10, clock)
    turns = [
        {name: seconds(work, steps, clock) / steps for name, (work, steps) in tasks.items()}
        for _ in range(repeats)
    ]
    return {name: 1e6 * min(turn[name] for turn in turns) for name in tasks}


def main():
    clock = time.process_time if DEVICE == "cpu" else time.perf_counter
    tasks = {
        "user loop": (user_loop, 2_000),
        "floor": (floor, 64_000),
        "single run": (engine(1), 20_000),
        f"{RUNS} runs": (engine(RUNS), 128_000),
        "products": (products, 64_000),
    }
    if DEVICE != "cpu":
        tasks["4096 runs"] = (engine(4096), 8_192_000)
    cost = microseconds(tasks, clock)
    print(f"torch {torch.__version__}, {DEVICE}, microseconds a step; ratios")
    for name, own in cost.items():
        print(
            f"{name:12s} {own:9.3f}   user loop / this {cost['user loop'] / own:7.1f}"
            f"   this / floor {own / cost['floor']:7.2f}"
        )
    if DEVICE == "cpu":
        torch.set_num_threads(os.cpu_count())
        own = microseconds({"all": tasks[f"{RUNS} runs"]}, time.perf_counter, 3)["all"]
        torch.set_num_threads(1)
        loop = microseconds({"loop": tasks["user loop"]}, time.perf_counter, 3)["loop"]
        print(
            f"by the clock, {os.cpu_count()} threads: {RUNS} runs {own:.3f}, "
            f"user loop on one thread / this {loop / own:.1f}"
        )
    else:
        a = torch.empty(2**28, device=DEVICE)
        b = torch.empty_like(a)
        copy = microseconds({"copy": (lambda steps: [b.copy_(a) for _ in range(steps)], 20)}, clock)
        print(f"copy: {2 * 4 * a.numel() / copy['copy'] / 1e3:.0f} GB/s read and written")


if __name__ == "__main__":
    main()
