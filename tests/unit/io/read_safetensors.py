"""An independent reader and writer of safetensors files, from the published description; Python's own library alone.

read FILE    prints {"metadata": {...}, "tensors": {name: [dtype, shape, [values]]}} as JSON
write FILE   writes a file as another program would: other order of keys, spaces behind the header
"""
import json
import struct
import sys

WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1}
CODE = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "U8": "B"}


def values(dtype, raw):
    if dtype == "BF16":  # the upper half of a float32
        raw, dtype = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)), "F32"
    return list(struct.unpack("<%d%s" % (len(raw) // WIDTH[dtype], CODE[dtype]), raw))


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length].decode())
    body = data[8 + length:]
    tensors, covered = {}, 0
    metadata = header.pop("__metadata__", {})
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        assert begin == covered and (8 + length + begin) % WIDTH[t["dtype"]] == 0, name
        covered = end
        tensors[name] = [t["dtype"], t["shape"], values(t["dtype"], body[begin:end])]
    assert covered == len(body) and length % 8 == 0
    print(json.dumps({"metadata": metadata, "tensors": tensors}))


def write(path):
    body = struct.pack("<6f", *range(6)) + struct.pack("<q", -7) + struct.pack("<3e", 0.5, -1.5, 2)
    header = {
        "half": {"data_offsets": [32, 38], "shape": [3], "dtype": "F16"},
        "counter": {"shape": [], "dtype": "I64", "data_offsets": [24, 32]},
        "empty": {"shape": [4, 0], "dtype": "F32", "data_offsets": [24, 24]},
        "grid ä": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "__metadata__": {"who": "python"},
    }
    text = json.dumps(header, indent=1).encode() + b"   "
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


{"read": read, "write": write}[sys.argv[1]](sys.argv[2])
