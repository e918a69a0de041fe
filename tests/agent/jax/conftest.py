"""Eight devices on the CPU, before anything imports JAX."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
