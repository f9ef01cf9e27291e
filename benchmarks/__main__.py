"""Print every figure: `python -m benchmarks`."""

import platform
from datetime import UTC, datetime

from benchmarks import (
    admission,
    calibration,
    curves,
    dashboard,
    filters,
    hostile_plans,
    orders_grid,
    planning,
    plans,
    sdk_overhead,
    secure_noise,
    step_groups,
    step_latency,
    step_stages,
    throughput,
    webhooks,
)

if __name__ == "__main__":
    print(f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {platform.machine()}\n")
    for module in (
        orders_grid,
        curves,
        calibration,
        admission,
        filters,
        step_groups,
        step_stages,
        step_latency,
        throughput,
        planning,
        webhooks,
        hostile_plans,
        plans,
        sdk_overhead,
        secure_noise,
        dashboard,
    ):
        print(f"## {module.__name__.removeprefix('benchmarks.')}\n")
        module.main()
        print()
