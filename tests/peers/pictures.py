#!/usr/bin/env python3
"""Pictures a second of our pipeline and of torch.utils.data with torchvision, on the same cores and files, in turn.

Needs torch, torchvision and Pillow; says so and exits with 77 where they are missing. Exits with 1 where ours is slower.
  cmake --build build --target ours_pictures resnet
  peer/bin/python tests/peers/pictures.py --ours=build/tests/ours_pictures
  peer/bin/python tests/peers/pictures.py --train=build/examples/resnet -- --size=18 --batch=32
The second measures training steps instead, on JPEGs and on synthetic pictures of 224 x 224 in turn, and the seconds of a
processor that decoding takes. Exits with 1 where a step on JPEGs takes more than 1.05 times what those two add up to.
"""

import argparse
import json
import os
import resource
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


def processor_seconds(ours, folder):
    """Of one thread, for a picture."""
    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before, seconds = used(), 6
    rate = float(subprocess.run([ours, folder, "1", str(seconds)], check=True, stdout=subprocess.PIPE).stdout)
    pictures = rate * seconds + 8 * BATCH  # those before the clock starts, and those ahead when it ends
    return (used() - before) / pictures


def steps(program, flags, folder):
    """Median milliseconds of a training step behind the first three, and of those that waited for data."""
    with tempfile.TemporaryDirectory() as out:
        data = [f"--images={folder}"] if folder else ["--image_size=224"]
        log = os.path.join(out, "log.json")
        subprocess.run([program, *data, "--steps=12", "--eval_batches=0", f"--log_json={log}", *flags], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(log) as file:
            lines = [line for line in map(json.loads, file) if "step_ms" in line][3:]
    return statistics.median(line["step_ms"] for line in lines), statistics.median(line["data_ms"] for line in lines)


def measure_steps(given):
    batch = int(next((flag.split("=")[1] for flag in given.flags if flag.startswith("--batch=")), 64))
    with tempfile.TemporaryDirectory() as folder:
        for which in ("train", "val"):
            for name in ("x", "y"):
                made = os.path.join(folder, which + name)
                write_pictures(made, given.pictures // 2)
                os.makedirs(os.path.join(folder, which), exist_ok=True)
                os.rename(os.path.join(made, "a"), os.path.join(folder, which, name))
        decoding = processor_seconds(given.ours, os.path.join(folder, "train")) * batch * 1000 / given.workers
        synthetic, jpegs = [], []
        for turn in range(given.turns):
            synthetic.append(steps(given.train, given.flags, None)[0])
            step, waited = steps(given.train, given.flags, folder)
            jpegs.append(step)
            print(f"turn {turn}: synthetic {synthetic[-1]:.0f} ms, JPEGs {step:.0f} ms, of these {waited:.1f} waiting",
                  flush=True)
    least = statistics.median(synthetic) + decoding
    ratio = statistics.median(jpegs) / least
    print(f"medians: synthetic {statistics.median(synthetic):.0f} ms + decoding on {given.workers} cores {decoding:.0f} "
          f"ms, JPEGs {statistics.median(jpegs):.0f} ms: {ratio:.3f} times")
    return 0 if ratio <= 1.05 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", default="build/tests/ours_pictures")
    parser.add_argument("--train", help="a program of examples/ that trains on pictures")
    parser.add_argument("flags", nargs="*", help="of that program")
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
    if given.train:
        return measure_steps(given)
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
