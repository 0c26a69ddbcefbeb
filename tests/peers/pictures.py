#!/usr/bin/env python3
"""Pictures a second of our pipeline and of torch.utils.data with torchvision, on the same cores and files, in turn.

Needs torch, torchvision and Pillow; says so and exits with 77 where they are missing. Exits with 1 where ours is slower.
  cmake --build build --target ours_pictures
  peer/bin/python tests/peers/pictures.py --ours=build/tests/ours_pictures
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 64


def write_pictures(folder, count):
    """JPEGs as ImageNet's: 500 x 375 pixels, quality 90, smooth areas, edges and grain; about 70 KB each."""
    import torch
    from PIL import Image

    os.makedirs(os.path.join(folder, "a"))
    made = torch.Generator().manual_seed(1)
    sizes = []
    for i in range(count):
        pixels = torch.zeros(1, 3, 375, 500)
        for cells, weight in ((4, 90), (12, 50), (60, 25)):
            coarse = torch.randn(1, 3, cells, cells, generator=made)
            mode = "nearest" if cells == 12 else "bilinear"
            pixels += weight * torch.nn.functional.interpolate(coarse, size=(375, 500), mode=mode)
        pixels += 6 * torch.randn(pixels.shape, generator=made)
        array = (pixels[0] * 0.6 + 128).clamp(0, 255).byte().permute(1, 2, 0).numpy()
        path = os.path.join(folder, "a", f"{i}.jpg")
        Image.fromarray(array).save(path, quality=90)
        sizes.append(os.path.getsize(path))
    return statistics.mean(sizes)


def theirs(folder, workers, seconds):
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    transform = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize(MEAN, DEVIATION)
    ])
    data = datasets.ImageFolder(folder, transform)
    # One worker for each of our threads, which sleep less than the main process, that only takes what is there.
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=workers, drop_last=True,
                                         persistent_workers=True, prefetch_factor=4)

    def batches():
        while True:
            yield from loader

    taken = batches()
    for _ in range(4):
        next(taken)
    start, count = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        next(taken)
        count += BATCH
    return count / (time.monotonic() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", default="build/tests/ours_pictures")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    try:
        import PIL
        import torch
        import torchvision
    except ImportError as error:
        print(f"skipped: {sys.executable} lacks torch, torchvision or Pillow ({error})")
        return 77
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}, "
          f"{given.workers} workers")
    ours, other = [], []
    with tempfile.TemporaryDirectory() as folder:
        print(f"{given.pictures} pictures of {write_pictures(folder, given.pictures) / 1000:.0f} KB")
        for turn in range(given.turns):
            command = [given.ours, folder, str(given.workers), str(given.seconds)]
            ours.append(float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
            other.append(theirs(folder, given.workers, given.seconds))
            print(f"turn {turn}: ours {ours[-1]:.0f}/s, theirs {other[-1]:.0f}/s", flush=True)
    ratio = statistics.median(ours) / statistics.median(other)
    print(f"medians: ours {statistics.median(ours):.0f}/s, theirs {statistics.median(other):.0f}/s: {ratio:.2f} times")
    return 0 if ratio >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
