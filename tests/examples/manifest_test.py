#!/usr/bin/env python3
"""examples/kubernetes/gpt.yaml: its form against manifest_test.schema.json, what its parts say of one another, of
actor/net/rendezvous/identity.cc and of the program, which is then run as the manifest would run it. And every planted mistake is found.

    manifest_test.py --source=. --gpt=build/examples/gpt
"""

import argparse
import copy
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77  # as tests/CMakeLists.txt tells ctest

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print(f"SKIPPED: {missing}; this test needs the packages python3-yaml and python3-jsonschema")
    sys.exit(SKIPPED)

DEADLINE = 120  # seconds: keeps a hang from hanging


class OnceLoader(yaml.SafeLoader):
    """As SafeLoader, which of two equal keys takes the last without a word."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.YAMLError(f"{sorted(twice)} twice in one mapping{node.start_mark}")
        return super().construct_mapping(node, deep)


def load(text):
    return list(yaml.load_all(text, Loader=OnceLoader))


# ---- what is read beside the manifest


class Surroundings:
    def __init__(self, source, gpt):
        with open(f"{source}/tests/examples/manifest_test.schema.json") as file:
            self.schema = json.load(file)
        with open(f"{source}/actor/net/rendezvous/identity.cc") as file:
            self.variables = set(re.findall(r'"([A-Z][A-Z0-9_]+)"', file.read()))
        said = subprocess.run([gpt, "--helpfull"], capture_output=True, text=True, timeout=DEADLINE).stdout
        # A flag that a description mentions has one space before it.
        self.flags = set(re.findall(r"  --([a-z_]+) ", said))


# ---- the rules; each gives sentences about what is wrong


def form(docs, around):
    """Against the schema, one object at a time."""
    for number, doc in enumerate(docs):
        kind = doc.get("kind") if isinstance(doc, dict) else None
        if not isinstance(kind, str) or {"$ref": f"#/definitions/{kind}"} not in around.schema["oneOf"]:
            yield f"document {number}: kind {kind!r} does not belong here"
            continue
        schema = dict(around.schema, oneOf=[{"$ref": f"#/definitions/{kind}"}])
        for error in jsonschema.Draft7Validator(schema).iter_errors(doc):
            for leaf in leaves(error):
                yield f"{kind}: {'/'.join(map(str, leaf.absolute_path))}: {leaf.message}"


def leaves(error):
    if not error.context:
        return [error]
    return [leaf for inner in error.context for leaf in leaves(inner)]


def only(docs, kind):
    found = [doc for doc in docs if doc["kind"] == kind]
    return found[0] if len(found) == 1 else None


def environment(container):
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container["env"]}


def flag_values(container):
    return dict(arg[2:].split("=", 1) for arg in container["args"])


def numbers(job, container):
    """As many pods as processes, all at once."""
    spec, variables = job["spec"], environment(container)
    if spec["completions"] != spec["parallelism"]:
        yield f"completions is {spec['completions']} but parallelism {spec['parallelism']}"
    if variables.get("WORLD_SIZE") != str(spec["completions"]):
        yield f"WORLD_SIZE is {variables.get('WORLD_SIZE')} but completions {spec['completions']}"


def meeting(job, service, container):
    """MASTER_ADDR is pod 0 in the Service that the pods are in."""
    name, pod = service["metadata"]["name"], job["spec"]["template"]
    variables = environment(container)
    if pod["spec"]["subdomain"] != name:
        yield f"subdomain is {pod['spec']['subdomain']} but the Service is {name}"
    if variables.get("MASTER_ADDR") != f"{job['metadata']['name']}-0.{name}":
        yield f"MASTER_ADDR is {variables.get('MASTER_ADDR')}, not pod 0 of the Job in the Service"
    if not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items():
        yield "the Service's selector does not fit the labels of the pods"
    ports = [str(port["port"]) for port in service["spec"].get("ports", [])]
    if variables.get("MASTER_PORT") not in ports:
        yield f"MASTER_PORT is {variables.get('MASTER_PORT')} but the Service's ports are {ports}"


def wall(job, policy):
    """The NetworkPolicy keeps all but the Job's pods from the Job's pods."""
    labels = job["spec"]["template"]["metadata"]["labels"]
    if not policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items():
        yield "the NetworkPolicy is not about the pods"
    for rule in policy["spec"]["ingress"]:
        for peer in rule["from"]:
            if not peer["podSelector"]["matchLabels"].items() <= labels.items():
                yield "the NetworkPolicy lets others in, or not the pods"


def variables_known(container, around):
    names = [v["name"] for v in container["env"]]
    for name in sorted(set(names)):
        if names.count(name) > 1:
            yield f"{name} is set twice"
        if name not in around.variables and not name.startswith("UCX_"):
            yield f"actor/net/rendezvous/identity.cc knows no variable {name}"
    for name in ("RANK", "JOB_COMPLETION_INDEX"):
        if name in names:
            yield f"{name} is set, but each pod's is Kubernetes' to set"
    if "JOB_COMPLETION_INDEX" not in around.variables:
        yield "actor/net/rendezvous/identity.cc no longer knows JOB_COMPLETION_INDEX"
    token = environment(container).get("ONEFLOW_LIKE_TOKEN")
    if not isinstance(token, dict) or "secretKeyRef" not in token:
        yield "ONEFLOW_LIKE_TOKEN does not come from a Secret"


def flags_fit(job, container, around):
    names = [arg[2:].split("=", 1)[0] for arg in container["args"]]
    flags = flag_values(container)
    for name in sorted(set(names)):
        if names.count(name) > 1:
            yield f"--{name} is given twice"
        if name not in around.flags:
            yield f"the program has no flag --{name}"
    devices = 1
    for axis in flags.get("mesh", "").partition(":")[2].split(","):
        devices *= int(axis.partition("=")[2] or 1)
    if devices % job["spec"]["completions"] != 0:
        yield f"{devices} devices of --mesh cannot be shared by {job['spec']['completions']} processes"
    cpu = container["resources"]["limits"]["cpu"]
    millis = int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000
    threads = int(flags.get("threads", 0)) * int(flags.get("kernel_threads", 0))
    if not 0 < threads * 1000 <= millis:
        yield f"--threads times --kernel_threads is {threads} on {cpu} processors"


def goes_on(job, container):
    """Pods that end with 75 have saved, where all can read it, and come again."""
    volumes = [volume["name"] for volume in job["spec"]["template"]["spec"].get("volumes", [])]
    mounts = container.get("volumeMounts", [])
    for mount in mounts:
        if mount["name"] not in volumes:
            yield f"there is no volume {mount['name']}"
    flags = flag_values(container)
    save = flags.get("save")
    if save != flags.get("resume"):
        yield f"the run saves in {save} but --resume is {flags.get('resume')}"
    if save is not None and not any(save.startswith(mount["mountPath"] + "/") for mount in mounts):
        yield f"--save={save} is on no volume"
    rules = job["spec"].get("podFailurePolicy", {}).get("rules", [])
    for rule in rules:
        if rule["onExitCodes"].get("containerName", container["name"]) != container["name"]:
            yield f"podFailurePolicy is about a container {rule['onExitCodes']['containerName']}"
    ignored = [code for rule in rules if rule["action"] == "Ignore" and rule["onExitCodes"]["operator"] == "In"
               for code in rule["onExitCodes"]["values"]]
    if save is not None and ignored != [75]:
        yield f"podFailurePolicy ignores {ignored}, but what has saved ends with 75"


def mistakes(docs, around):
    found = list(form(docs, around))
    if found:
        return found  # the other rules take the form for granted
    job, service, policy = (only(docs, kind) for kind in ("Job", "Service", "NetworkPolicy"))
    if not (job and service and policy):
        return ["one Job, one Service and one NetworkPolicy are expected"]
    container = job["spec"]["template"]["spec"]["containers"][0]
    return [
        *numbers(job, container),
        *meeting(job, service, container),
        *wall(job, policy),
        *variables_known(container, around),
        *flags_fit(job, container, around),
        *goes_on(job, container),
    ]


# ---- planted mistakes: where, what is put there (a function changes what is there), and a word of what is to be said

GONE = object()
POD = ("Job", "spec", "template", "spec")
CONTAINER = POD + ("containers", 0)
RULE = ("Job", "spec", "podFailurePolicy", "rules", 0)


def variable(name):
    return lambda env: next(i for i, v in enumerate(env) if v["name"] == name)


def without(name):
    return lambda env: [v for v in env if v["name"] != name]


PLANTED = [
    (("Job", "apiVersion"), "batch/v1beta1", "batch/v1"),
    (("Job", "apiVersion"), GONE, "apiVersion"),
    (("Job", "kind"), "CronJob", "CronJob"),
    (("Job", "metadata", "name"), "GPT", "GPT"),
    (("Job", "metadata", "name"), "other", "MASTER_ADDR"),
    (("Job", "spec", "completion"), 4, "completion"),
    (("Job", "spec", "completionMode"), GONE, "completionMode"),
    (("Job", "spec", "completionMode"), "NonIndexed", "Indexed"),
    (("Job", "spec", "completions"), "4", "integer"),
    (("Job", "spec", "completions"), 8, "parallelism"),
    (("Job", "spec", "parallelism"), 2, "parallelism"),
    (("Job", "spec", "backoffLimit"), 6, "backoffLimit"),
    (("Job", "spec", "backoffLimit"), False, "backoffLimit"),
    (("Job", "spec", "template", "metadata", "labels"), {"app": "other"}, "selector"),
    (POD + ("restartPolicy",), "OnFailure", "Never"),
    (POD + ("restartPolicy",), GONE, "restartPolicy"),
    (POD + ("subdomain",), GONE, "subdomain"),
    (POD + ("subdomain",), "other", "subdomain"),
    (POD + ("containers",), [], "containers"),
    (POD + ("hostNetwork",), True, "hostNetwork"),
    (CONTAINER + ("image",), "no-tag", "image"),
    (CONTAINER + ("command",), "/opt/oneflow_like/gpt", "array"),
    (CONTAINER + ("args", 1), "--mesh cpu:dp=4,tp=2", "match"),
    (CONTAINER + ("args", 1), "--mash=cpu:dp=4,tp=2", "--mash"),
    (CONTAINER + ("args", 1), "--mesh=cpu:dp=3,tp=2", "6 devices"),
    (CONTAINER + ("args",), lambda args: args + ["--steps=5"], "--steps is given twice"),
    (CONTAINER + ("args",), lambda args: [a for a in args if "threads" not in a], "threads"),
    (CONTAINER + ("env", variable("WORLD_SIZE"), "value"), 4, "string"),
    (CONTAINER + ("env", variable("WORLD_SIZE"), "value"), "3", "WORLD_SIZE"),
    (CONTAINER + ("env", variable("WORLD_SIZE"), "name"), "WORLDSIZE", "WORLDSIZE"),
    (CONTAINER + ("env",), without("MASTER_ADDR"), "MASTER_ADDR"),
    (CONTAINER + ("env", variable("MASTER_ADDR"), "value"), "gpt-1.gpt", "MASTER_ADDR"),
    (CONTAINER + ("env", variable("MASTER_ADDR"), "value"), "gpt-0.gtp", "MASTER_ADDR"),
    (CONTAINER + ("env", variable("MASTER_PORT"), "value"), "29501", "MASTER_PORT"),
    (CONTAINER + ("env",), without("ONEFLOW_LIKE_TOKEN"), "ONEFLOW_LIKE_TOKEN"),
    (CONTAINER + ("env", variable("ONEFLOW_LIKE_TOKEN")), {"name": "ONEFLOW_LIKE_TOKEN", "value": "x"}, "Secret"),
    (CONTAINER + ("env", variable("ONEFLOW_LIKE_TOKEN"), "valueFrom", "secretKeyRef", "key"), GONE, "key"),
    (CONTAINER + ("env",), lambda env: env + [{"name": "RANK", "value": "0"}], "RANK"),
    (CONTAINER + ("env",), lambda env: env + env[:1], "twice"),
    (CONTAINER + ("args",), lambda args: [a for a in args if "resume" not in a], "--resume is None"),
    (CONTAINER + ("args",), lambda args: [a.replace("/checkpoints", "/tmp") for a in args], "on no volume"),
    (CONTAINER + ("volumeMounts",), GONE, "on no volume"),
    (CONTAINER + ("volumeMounts", 0, "mountPath"), "/checkpoints/", "match"),
    (CONTAINER + ("volumeMounts", 0, "name"), "other", "no volume other"),
    (POD + ("volumes",), GONE, "no volume checkpoints"),
    (("Job", "spec", "podFailurePolicy"), GONE, "75"),
    (RULE + ("action",), "Retry", "Retry"),
    (RULE + ("action",), "FailJob", "75"),
    (RULE + ("onExitCodes", "values"), [1, 75], "75"),
    (RULE + ("onExitCodes", "values"), [0], "minimum"),
    (RULE + ("onExitCodes", "operator"), "NotIn", "75"),
    (RULE + ("onExitCodes", "containerName"), "other", "container other"),
    (CONTAINER + ("resources",), GONE, "resources"),
    (CONTAINER + ("resources", "limits", "memory"), "4 GB", "4 GB"),
    (CONTAINER + ("resources", "limits", "cpu"), "2", "2 processors"),
    (("Service",), GONE, "one Service"),
    (("Service", "metadata", "name"), "other", "the Service is other"),
    (("Service", "spec", "clusterIP"), GONE, "clusterIP"),
    (("Service", "spec", "publishNotReadyAddresses"), "true", "publishNotReadyAddresses"),
    (("Service", "spec", "selector"), {"app": "other"}, "selector"),
    (("Service", "spec", "ports", 0, "port"), 65536, "65536"),
    (("Service", "spec", "ports", 0, "port"), "29500", "integer"),
    (("NetworkPolicy",), GONE, "one NetworkPolicy"),
    (("NetworkPolicy", "spec", "podSelector", "matchLabels"), {"app": "other"}, "not about"),
    (("NetworkPolicy", "spec", "ingress"), [{}], "from"),
    (("NetworkPolicy", "spec", "ingress", 0, "from", 0, "podSelector", "matchLabels"), {"app": "x"}, "others"),
    (("NetworkPolicy",), {"apiVersion": "v1", "kind": "Secret", "stringData": {"token": "x"}}, "Secret"),
]


def planted(docs, path, value):
    """A copy of `docs` with `value` at `path`, whose first word is a kind."""
    docs = copy.deepcopy(docs)
    place, last = docs, next(i for i, doc in enumerate(docs) if doc["kind"] == path[0])
    for word in path[1:]:
        place = place[last]
        last = word(place) if callable(word) else word
    if value is GONE:
        del place[last]
    else:
        place[last] = value(place[last]) if callable(value) else value
    return docs


class Manifest(unittest.TestCase):
    source = gpt = None  # of the command line

    @classmethod
    def setUpClass(cls):
        cls.around = Surroundings(cls.source, cls.gpt)
        with open(f"{cls.source}/examples/kubernetes/gpt.yaml") as file:
            cls.text = file.read()
        cls.docs = load(cls.text)

    def test_surroundings_are_read(self):
        self.assertLessEqual({"WORLD_SIZE", "MASTER_ADDR", "JOB_COMPLETION_INDEX"}, self.around.variables)
        self.assertLessEqual({"mesh", "steps", "peer_timeout"}, self.around.flags)
        jsonschema.Draft7Validator.check_schema(self.around.schema)

    def test_is_right(self):
        self.assertEqual(mistakes(self.docs, self.around), [])

    def test_planted_mistakes_are_found(self):
        for path, value, word in PLANTED:
            with self.subTest(path=path, value="(gone)" if value is GONE else value):
                docs = planted(self.docs, path, value)
                self.assertNotEqual(json.dumps(docs), json.dumps(self.docs))  # where False is not 0
                found = mistakes(docs, self.around)
                self.assertTrue(any(word in mistake for mistake in found), f"{word!r} is not in {found}")

    def test_keys_stand_once(self):
        self.assertIn("  backoffLimit: 0", self.text)
        with self.assertRaisesRegex(yaml.YAMLError, "backoffLimit"):
            load(self.text.replace("  backoffLimit: 0", "  backoffLimit: 0\n  backoffLimit: 0"))

    def test_program_runs_so(self):
        """With the manifest's flags and variables, but here: small, and met on the loopback device."""
        job = only(self.docs, "Job")
        container = job["spec"]["template"]["spec"]["containers"][0]
        count = job["spec"]["completions"]
        with tempfile.TemporaryDirectory(prefix="manifest_test.") as folder:
            text = f"{folder}/text.txt"
            with open(text, "w") as file:
                file.write("".join(f"the quick brown fox {i * 7919}\n" for i in range(400)))
            args = container["args"] + [f"--save={folder}/run", f"--resume={folder}/run"]
            args += [f"--text={text}", "--steps=2", "--layers=1", "--width=16", "--heads=2"]
            args += ["--context=16", "--eval_batches=0", "--sample_tokens=0", "--threads=1", "--kernel_threads=1"]
            variables = {name: value for name, value in environment(container).items() if isinstance(value, str)}
            variables.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
            variables.update(ONEFLOW_LIKE_TOKEN=secrets.token_hex(16), PATH=os.environ["PATH"])
            results = run_all([self.gpt] + args, variables, count, folder)
        for index, (code, said) in enumerate(results):
            self.assertEqual(code, 0, f"process {index}: {said}")
        self.assertIn("2 steps in", results[0][1])
        self.assertEqual([said for _, said in results[1:]], [""] * (count - 1))


def free_port():
    """Below those that the kernel gives to connections."""
    for port in range(20000 + os.getpid() % 9000, 32000):
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise OSError("no free port")


def run_all(command, variables, count, folder):
    """Exit code and output of each process, as Kubernetes would number them."""
    processes = []
    try:
        for index in range(count):
            with open(f"{folder}/{index}", "w") as out:
                env = dict(variables, JOB_COMPLETION_INDEX=str(index))
                processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT))
        codes = [process.wait(DEADLINE) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    said = []
    for index in range(count):
        with open(f"{folder}/{index}", errors="replace") as file:
            said.append(file.read())
    return list(zip(codes, said))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--gpt", required=True)
    options, rest = parser.parse_known_args()
    Manifest.source, Manifest.gpt = options.source, os.path.abspath(options.gpt)
    unittest.main(argv=[sys.argv[0]] + rest)
