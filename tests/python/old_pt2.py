"""Files of torch.export in the layouts of older torch versions: read as the same network as in the newest.

torch 2.5 to 2.7 put the graph and two files of torch.save beside each other in a zip file; 2.8 has them in a folder; from
2.9 on every tensor is a record of its own. The older ones are made here out of a new one: the graph's text is the same.

Usage: old_pt2.py TESSERA NEW.pt2     exit code 77: there is no torch
"""
import io
import json
import subprocess
import sys
import tempfile
import zipfile

try:
    import torch
except ImportError:
    print("there is no torch")
    sys.exit(77)

TYPES = {5: torch.int64, 7: torch.float32}


def tensors(archive, kind):
    """name -> tensor, as torch.export's state dict has them: parameters are Parameters."""
    folder = archive.namelist()[0].split("/")[0]
    config = json.loads(archive.read(f"{folder}/data/{kind}/model_{kind}_config.json"))["config"]
    out = {}
    for name, entry in config.items():
        meta = entry["tensor_meta"]
        flat = torch.frombuffer(bytearray(archive.read(f"{folder}/data/{kind}/{entry['path_name']}")),
                                dtype=TYPES[meta["dtype"]])
        value = flat.as_strided([s["as_int"] for s in meta["sizes"]], [s["as_int"] for s in meta["strides"]])
        out[name] = torch.nn.Parameter(value, meta["requires_grad"]) if entry["is_param"] else value
    return out


def saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def said(tessera, path, *more):
    done = subprocess.run([tessera, *more, path] if more[0] == "show" else [tessera, *more, "--model", path],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout.replace(path, "FILE")


def main(tessera, new):
    with zipfile.ZipFile(new) as archive, tempfile.TemporaryDirectory() as folder:
        graph = archive.read([n for n in archive.namelist() if n.endswith("models/model.json")][0])
        weights, constants = saved(tensors(archive, "weights")), saved(tensors(archive, "constants"))
        old, middle, damaged = folder + "/net25.pt2", folder + "/net28.pt2", folder + "/damaged.pt2"
        with zipfile.ZipFile(old, "w") as out:
            out.writestr("serialized_exported_program.json", graph)
            out.writestr("serialized_state_dict.pt", weights)
            out.writestr("serialized_constants.pt", constants)
            out.writestr("serialized_example_inputs.pt", saved(()))
            out.writestr("version", "8.1")
        with zipfile.ZipFile(middle, "w") as out:
            for name, data in [("data/weights/model.pt", weights), ("data/constants/model.pt", constants),
                               ("models/model.json", graph), ("archive_format", b"pt2"), ("version", b"3"),
                               (".data/version", b"3"), ("byteorder", b"little")]:
                out.writestr("net28/" + name, data)
        show = said(tessera, new, "show", "--image-size", "64")
        assert show[0] == 0, show
        verify = ["verify", "--image-size", "64", "--batch-size", "4", "--steps", "1"]
        expected = said(tessera, new, *verify)
        assert expected[0] == 0, expected
        for path in (old, middle):
            assert said(tessera, path, "show", "--image-size", "64") == show, path
            found = said(tessera, path, *verify)
            assert found == expected, (path, found, expected)
        # Cut short, or with a pickle that holds something else: refused with a message.
        with open(old, "rb") as file:
            bytes_ = file.read()
        for part in (bytes_[:len(bytes_) // 2], bytes_[:200], bytes_.replace(b"_rebuild_tensor_v2", b"_rebuild_something")):
            with open(damaged, "wb") as file:
                file.write(part)
            status, words = said(tessera, damaged, "show", "--image-size", "64")
            assert status == 2 and "cannot be read" in words and len(words.splitlines()) < 4, (status, words)
            print(words.strip())
    print(expected[1].strip().splitlines()[-1])


main(sys.argv[1], sys.argv[2])
