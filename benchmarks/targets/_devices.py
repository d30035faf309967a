"""Devices to compile for: described GPUs and TPU slices, or the devices of this machine."""

import importlib.metadata
from dataclasses import dataclass, field
from typing import Any

GIB = 2**30
LOCAL_TARGET = "here"
"""Target name of the default device of this machine."""


@dataclass(frozen=True)
class Target:
    """A kind of device, and the number of them.

    Attributes:
      name: Name in tables and flags.
      platform: Platform that programs are lowered for.
      memory_gib: Memory of a device that programs can use, in GiB.
      gb_per_second: Memory bandwidth of a device according to its data sheet.
      topology: Topology of a TPU slice, such as ``"v5e:2x4"``.
      gpu: Fields of the description of a GPU that differ between models.
      n_devices: Number of devices; more than one for a mesh.
      env: Environment variables of the compiling process.
    """

    name: str
    platform: str
    memory_gib: float
    gb_per_second: float
    topology: str = ""
    gpu: dict[str, Any] = field(default_factory=dict)
    n_devices: int = 1

    @property
    def env(self) -> dict[str, str]:
        """Environment variables of a process that compiles for this target.

        Neither compiler needs a device. Nothing can be tuned on a GPU that is absent.
        """
        flags = (
            "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false "
            "--xla_gpu_enable_cublaslt=false"
        )
        return {
            "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1",
            "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-1", "TPU_WORKER_ID": "0",
            "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "XLA_FLAGS": flags if self.platform == "cuda" else "",
        }  # fmt: skip

    def devices(self) -> list[Any]:
        """Returns the described devices, in the process whose environment is :attr:`env`."""
        from jax.experimental import topologies

        if self.platform == "cuda":
            topology = topologies.get_topology_desc(
                platform="cuda", target_config=gpu_description(self.gpu, self.memory_gib),
                topology=f"1x1x{self.n_devices}",
            )  # fmt: skip
            return list(topology.devices)
        bounds = {"chips_per_host_bounds": (1, 1, 1)} if self.n_devices == 1 else {}
        topology = topologies.get_topology_desc(
            platform="tpu", topology_name=self.topology, **bounds
        )
        return list(topology.devices)

    @property
    def compilers(self) -> dict[str, str]:
        """Versions of JAX and of the package with the compiler."""
        package = {"cuda": "jax-cuda12-pjrt", "tpu": "libtpu"}.get(self.platform, "jaxlib")
        names = {"jax": "jax", "compiler": package}
        versions = {key: importlib.metadata.version(name) for key, name in names.items()}
        return {**versions, "compiler": f"{package} {versions['compiler']}"}


def _gpu(
    title: str, capability: tuple[int, int], cores: int, fpus: int, ghz: float, l2_mib: int,
    shared_kib: int, threads: int,
) -> dict[str, Any]:  # fmt: skip
    return {
        "title": title, "major": capability[0], "minor": capability[1], "cores": cores,
        "fpus": fpus, "ghz": ghz, "l2": l2_mib * 2**20, "shared": shared_kib * 1024,
        "block_shared": (shared_kib - (1 if shared_kib > 64 else 0)) * 1024, "threads": threads,
    }  # fmt: skip


def gpu_description(gpu: dict[str, Any], memory_gib: float) -> str:
    """Returns XLA's description of a GPU, a text proto of ``GpuTargetConfig``."""
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu["shared"]}
  shared_memory_per_block_optin: {gpu["block_shared"]}
  threads_per_core_limit: {gpu["threads"]}
  core_count: {gpu["cores"]}
  fpus_per_core: {gpu["fpus"]}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(gpu["bandwidth"])}
  l2_cache_size: {gpu["l2"]}
  clock_rate_ghz: {gpu["ghz"]}
  device_memory_size: {int(memory_gib * GIB)}
  cuda_compute_capability {{ major: {gpu["major"]} minor: {gpu["minor"]} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{gpu["title"]}"
"""


_GPUS = {
    "t4": (14.7, 320, _gpu("Tesla T4", (7, 5), 40, 64, 1.59, 4, 64, 1024)),
    "l4": (22.0, 300, _gpu("NVIDIA L4", (8, 9), 58, 128, 2.04, 48, 100, 1536)),
    "a100": (39.5, 1555, _gpu("NVIDIA A100-SXM4-40GB", (8, 0), 108, 64, 1.41, 40, 164, 2048)),
    "h100": (79.1, 3352, _gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 50, 228, 2048)),
}


def _gpu_target(kind: str, n_devices: int = 1) -> Target:
    memory, bandwidth, gpu = _GPUS[kind]
    name = kind if n_devices == 1 else f"{kind}-{n_devices}"
    fields = {**gpu, "bandwidth": bandwidth * 1e9}
    return Target(name, "cuda", memory, bandwidth, gpu=fields, n_devices=n_devices)


TARGETS = {
    target.name: target
    for target in (
        *map(_gpu_target, _GPUS),
        Target("v5e-1", "tpu", 15.75, 819, "v5e:1x1"),
        Target("v6e-1", "tpu", 31.25, 1640, "v6e:1x1"),
        _gpu_target("h100", 8),
        Target("v5e-8", "tpu", 15.75, 819, "v5e:2x4", n_devices=8),
        Target("v6e-16", "tpu", 31.25, 1640, "v6e:4x4", n_devices=16),
        Target("v5e-64", "tpu", 15.75, 819, "v5e:8x8", n_devices=64),
    )
}
"""The single devices, and the meshes."""
