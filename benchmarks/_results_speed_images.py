"""Results page sections on the speed of image augmentation and training."""

from typing import Any

from ._results_tables import join, machine_of, number, table

Content = dict[str, Any]


def augment(content: Content) -> str:
    """Returns the section of ``augment.json``."""
    rows = {(row["name"], row["size"], row["cores"]): row for row in content["speed"]}
    heads = list(dict.fromkeys((size, cores) for _, size, cores in rows))

    def cell(name: str, head: tuple[int, int]) -> str:
        row = rows.get((name, *head))
        return f"{row['images_per_second_median']:,.0f}" if row else ""

    worst = max(content["differences"], key=lambda row: row["largest_difference"])
    return join(
        "### Views of images",
        "Augmented CIFAR-10 views per second: crop, flip, colour jitter, greyscale, blur and "
        f"normalisation, in batches of {content['batch']}. torchvision processes one image at a "
        "time, Kornia a batch. With the same parameters, the functions of crl_jax and torchvision "
        "differ by at most "
        f"{worst['largest_difference']:.0e}, in `{worst['function']}`. {machine_of(content)}. "
        "`python -m benchmarks.augment`",
        table(
            ["way", *(f"{size} pixels, {_cores(cores)}" for size, cores in heads)],
            [
                [name, *(cell(name, head) for head in heads)]
                for name in dict.fromkeys(name for name, *_ in rows)
            ],
        ),
    )


def resnet(content: Content) -> str:
    """Returns the section of ``resnet.json``."""
    cells = []
    for row in content["rows"]:
        depth, width = row["network"].split(":")
        way = f"{row['name']}, {row['layout']}" if row["name"] == "PyTorch" else row["name"]
        cells.append(
            [
                f"ResNet-{depth}, width {width}",
                row["views"],
                _cores(row["cores"]),
                way,
                number(row["step_ms"], 0),
                number(row["step_cpu_ms"], 0),
                f"{row['turns']} of {row['steps']} steps",
                number(row["peak_mb"], 0),
                number(row["times_best_pytorch"], 2),
            ]
        )
    setting = content["setting"]
    return join(
        "### A step of SimCLR",
        f"Both views of {setting['batch']} images of {setting['size']} pixels, forward, backward "
        "and Adam update, in float32; medians over turns. A turn is one call of crl_jax: an epoch "
        "of 10,000 images, or fewer where a step takes seconds. Views are either sampled in each "
        "step, as in training (PyTorch uses Kornia), or given, which compares only the networks. "
        "Memory is the peak of the process, which for crl_jax includes the compiler. Two CPU "
        "kernels have been removed since these measurements: in one run before and after, width 16 "
        "was 5 to 6 % slower on one core, 1 % faster with one device per core, and used 7 to 27 % "
        "less memory. "
        f"{machine_of(content)}. `python -m benchmarks.resnet --views drawn given`",
        table(
            [
                "network",
                "views",
                "on",
                "way",
                "ms",
                "CPU, ms",
                "turns",
                "memory, MB",
                "time over the best PyTorch",
            ],
            cells,
        ),
    )


def _cores(n: int) -> str:
    return f"{n} core{'s' if n > 1 else ''}"
