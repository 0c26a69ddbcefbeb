#!/usr/bin/env python3
"""Compares pictures of a folder with what Pillow and OpenCV read: each *.png with the bytes of RGB beside it (*.rgb).

Pillow cuts grey of 16 bits off at 255 where it converts it to RGB, so that is left to OpenCV, which takes the upper byte, as
we do.
"""

import pathlib
import sys

import cv2
from PIL import Image


def pillow(path):
    with Image.open(path) as picture:
        return None if picture.mode.startswith("I") else picture.convert("RGB").tobytes()


def opencv(path):
    return cv2.imread(str(path), cv2.IMREAD_COLOR)[:, :, ::-1].tobytes()


def main():
    readers = {"Pillow": pillow, "OpenCV": opencv}
    compared, wrong = 0, []
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.png")):
        ours = path.with_suffix(".rgb").read_bytes()
        for name, read in readers.items():
            theirs = read(path)
            compared += theirs is not None
            if theirs not in (None, ours):
                wrong.append(f"{name}: {path.name}")
    print(f"{' and '.join(readers)}: {compared} pictures compared, {len(wrong)} differ", *wrong[:10], sep="\n")
    return 1 if wrong or compared == 0 else 0


sys.exit(main())
