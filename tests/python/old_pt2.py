"""Files of torch.export in the layouts of older torch versions: read as the same network as in the newest.

torch 2.5 to 2.7 put the graph and two files of torch.save beside each other in a zip file; 2.8 has them in a folder; from
2.9 on every tensor is a record of its own. The older ones are made here out of a new one. Code that changes nothing in
place, as torch.export wrote it before 2.6 and run_decompositions() does today, returns what buffers become before what
the user gets; and whether a parameter is trained is known to the parameter alone.

Usage: old_pt2.py TESSERA NEW.pt2     exit code 77: there is no torch
"""
import io
import json
import os
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


def functional(text):
    """The same network with batch norms that return their statistics, and layers taken apart."""
    document = json.loads(text)
    module = document["graph_module"]
    graph, signature = module["graph"], module["signature"]
    buffers = {s["buffer"]["arg"]["name"]: s["buffer"]["buffer_name"] for s in signature["input_specs"] if "buffer" in s}
    renewed = []  # (name of a value, buffer)
    nodes = []
    for node in graph["nodes"]:
        nodes.append(node)
        named = {i["name"]: i["arg"].get("as_tensor", {}).get("name") for i in node["inputs"]}
        result = node["outputs"][0]["as_tensor"]["name"]
        if node["target"] == "torch.ops.aten.batch_norm.default":
            node["target"] = "torch.ops.aten._native_batch_norm_legit_functional.default"
            node["inputs"] = [i for i in node["inputs"] if i["name"] != "cudnn_enabled"]
            more = [f"{result}_{part}" for part in ("mean", "rstd", "running_mean", "running_var")]
            node["outputs"] += [{"as_tensor": {"name": name}} for name in more]
            renewed += [(more[2], buffers[named["running_mean"]]), (more[3], buffers[named["running_var"]])]
        elif node["target"] == "torch.ops.aten.add_.Tensor" and named["self"] in buffers:
            node["target"] = "torch.ops.aten.add.Tensor"
            renewed.append((result, buffers[named["self"]]))
        elif node["target"] == "torch.ops.aten.conv2d.default":
            node["target"] = "torch.ops.aten.convolution.default"
            given = {i["name"]: i["arg"] for i in node["inputs"]}
            usual = {"bias": {"as_none": True}, "stride": {"as_ints": [1, 1]}, "padding": {"as_ints": [0, 0]},
                     "dilation": {"as_ints": [1, 1]}, "transposed": {"as_bool": False},
                     "output_padding": {"as_ints": [0, 0]}, "groups": {"as_int": 1}}
            node["inputs"] = [{"name": name, "arg": given.get(name, usual.get(name)), "kind": 1}
                              for name in ["input", "weight", *usual]]
        elif node["target"] == "torch.ops.aten.linear.default":
            weight = named["weight"]
            permute = {"target": "torch.ops.aten.permute.default", "metadata": node["metadata"],
                       "inputs": [{"name": "self", "arg": {"as_tensor": {"name": weight}}, "kind": 1},
                                  {"name": "dims", "arg": {"as_ints": [1, 0]}, "kind": 1}],
                       "outputs": [{"as_tensor": {"name": weight + "_t"}}]}
            nodes.insert(-1, permute)
            node["target"] = "torch.ops.aten.addmm.default"
            node["inputs"] = [{"name": name, "arg": {"as_tensor": {"name": value}}, "kind": 1} for name, value in
                              [("self", named["bias"]), ("mat1", named["input"]), ("mat2", weight + "_t")]]
    graph["nodes"] = nodes
    assert len(renewed) > 3
    graph["outputs"] = [{"as_tensor": {"name": name}} for name, _ in renewed] + graph["outputs"]
    signature["output_specs"] = [{"buffer_mutation": {"arg": {"name": name}, "buffer_name": buffer}}
                                 for name, buffer in renewed] + signature["output_specs"]
    for values in graph["tensor_values"].values():
        values["requires_grad"] = False
    return json.dumps(document)


def exported_small(path, out):
    """The same network, as if its last planes of 2x2 had been single pixels at the export: it pools to one by a function."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("models/model.json"):
                document = json.loads(data)
                for values in document["graph_module"]["graph"]["tensor_values"].values():
                    if [size.get("as_int") for size in values["sizes"]][2:] == [2, 2]:
                        values["sizes"][2:] = [{"as_int": 1}, {"as_int": 1}]
                data = json.dumps(document)
            new.writestr(name, data)


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
            out.writestr("serialized_exported_program.json", functional(graph))
            out.writestr("serialized_state_dict.pt", weights)
            out.writestr("serialized_constants.pt", constants)
            out.writestr("serialized_example_inputs.pt", saved(()))
            out.writestr("version", "8.1")
        with zipfile.ZipFile(middle, "w") as out:
            for name, data in [("data/weights/model.pt", weights), ("data/constants/model.pt", constants),
                               ("models/model.json", graph), ("archive_format", b"pt2"), ("version", b"3"),
                               (".data/version", b"3"), ("byteorder", b"little")]:
                out.writestr("net28/" + name, data)
        # What the file says of modes: in training, and every parameter trained; and otherwise.
        values = tensors(archive, "weights")
        for name in values:
            if name.startswith("layer1") and isinstance(values[name], torch.nn.Parameter):
                values[name].requires_grad = False
        evaluating = graph.replace(b'"training", "arg": {"as_bool": true}', b'"training", "arg": {"as_bool": false}')
        cumulative = graph.replace(b"aten.linear.default", b"aten.cumsum.default")
        for code, state, status, words in [(graph, saved(values), 0, "not trained"),
                                           (evaluating, weights, 0, "evaluation mode"),
                                           (cumulative, weights, 2, "aten::cumsum in 'fc'")]:
            other = folder + "/other.pt2"
            with zipfile.ZipFile(other, "w") as out:
                out.writestr("serialized_exported_program.json", code)
                out.writestr("serialized_state_dict.pt", state)
                out.writestr("serialized_constants.pt", constants)
            found = said(tessera, other, "train", "--image-size", "64", "--batch-size", "4", "--steps", "1")
            assert found[0] == status and words in found[1], found
        show = said(tessera, new, "show", "--image-size", "64")
        assert show[0] == 0, show
        verify = ["verify", "--image-size", "64", "--batch-size", "4", "--steps", "1"]
        expected = said(tessera, new, *verify)
        assert expected[0] == 0, expected
        for path in (old, middle):
            assert said(tessera, path, "show", "--image-size", "64") == show, path
            found = said(tessera, path, *verify)
            assert found == expected, (path, found, expected)
        # A pool to one pixel stays one, at any image size.
        small = folder + "/small.pt2"
        exported_small(os.path.join(os.path.dirname(new), "densenet121.pt2"), small)
        status, words = said(tessera, small, "show", "--image-size", "96")
        assert status == 0, words
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
