#!/usr/bin/env python3
"""Empties the code that a CUDA library has for other GPUs than one: trim_library.py libnccl.so.2 OUT 90.

For a machine that is reached by few bytes: NCCL's 250 MB pack into a tenth. The library keeps its size and its tables;
of the code for other architectures, and of that which is only for a linker (__nv_relfatbin), zeros are left.
"""
import struct
import sys

MAGIC, ENTRY = b"\x50\xed\x55\xba", 2  # of a container; kind of an entry with machine code (1: PTX)


def containers(data):
    """Begin and end of what each container holds."""
    at = data.find(MAGIC)
    while at >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", data, at)
        if (version, header) == (1, 16):
            yield at + header, at + header + size
            at += size
        at = data.find(MAGIC, at + 4)


def relocatable(data):
    """Begin and end of the section __nv_relfatbin; (0, 0) where there is none."""
    table, = struct.unpack_from("<Q", data, 0x28)
    each, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", data, table + each * i) for i in range(count)]
    for name, _, _, _, offset, size in sections:
        begin = sections[names][4] + name
        if data[begin:data.index(b"\0", begin)] == b"__nv_relfatbin":
            return offset, offset + size
    return 0, 0


def main():
    path, out, architecture = sys.argv[1], sys.argv[2], int(sys.argv[3])
    data = bytearray(open(path, "rb").read())
    first, last = relocatable(data)
    kept = emptied = 0
    for begin, end in containers(bytes(data)):
        while begin < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, begin)
            arch, = struct.unpack_from("<I", data, begin + 28)
            if (kind, arch) == (ENTRY, architecture) and not first <= begin < last:
                kept += size
            else:
                data[begin + header:begin + header + size] = bytes(size)
                emptied += size
            begin += header + size
    if kept == 0:
        sys.exit(f"{path} has no code for sm_{architecture}")
    with open(out, "wb") as file:
        file.write(data)
    print(f"{kept / 1e6:.1f} MB of code for sm_{architecture} kept, {emptied / 1e6:.1f} MB of other code emptied")


if __name__ == "__main__":
    main()
