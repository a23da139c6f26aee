"""Files of named tensors as other programs have them: the safetensors format in a few lines, from its description."""
import json
import struct

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64}


def load(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        body = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        tensors[name] = torch.frombuffer(body[begin:end], dtype=DTYPES[t["dtype"]]).reshape(t["shape"]).clone()
    return tensors


def save(tensors, path):
    header, body = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().numpy().tobytes()
        dtype = next(text for text, dtype in DTYPES.items() if dtype == tensor.dtype)
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)
