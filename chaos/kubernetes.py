"""A Kubernetes cluster on this machine: etcd, kube-apiserver, and a node that runs each pod as a process.

    etcd ◄── kube-apiserver ◄── Spark's driver: creates executor pods, reads their phase, deletes them
                    ▲
                    └── Node: binds pods, runs them, reports phases

etcd and kube-apiserver are the real programs (`find`), with tokens and RBAC. `go build k8s.io/kubernetes/cmd/kube-apiserver` makes the
latter, in a module with the go.mod of k8s.io/kubernetes, which also requires k8s.io/kubernetes v1.N.P, and replaces each
./staging/src/k8s.io/X by k8s.io/X v0.N.P.

The node stands for scheduler, kubelet and image, and there is no controller manager: nothing is collected when its owner is gone. A pod
must be an executor of Spark: the node does what the entrypoint of Spark's image does with its environment. Each pod has an address of its
own, 127.0.1.N. Volumes are directories, so paths of mounts are replaced in the environment. Limits of memory and processors are not
enforced.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.spark.java import java_home

PATIENCE_S = 120.0
#: The directory with kube-apiserver; etcd is there or on the PATH.
BINARIES = "OTTLA_TEST_KUBERNETES"
NAMESPACE = "spark"
#: What a driver outside of the cluster may do, as docs/pipelines.md gives it.
DRIVER_RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods", "configmaps", "services", "persistentvolumeclaims"],
        "verbs": ["create", "get", "list", "watch", "update", "patch", "delete", "deletecollection"],
    }
]


def find() -> tuple[str, str] | None:
    """The paths of etcd and kube-apiserver; None if one is not there."""
    path = os.pathsep.join(filter(None, [os.environ.get(BINARIES), os.environ.get("PATH")]))
    etcd, apiserver = shutil.which("etcd", path=path), shutil.which("kube-apiserver", path=path)
    return (etcd, apiserver) if etcd and apiserver else None


@dataclass(frozen=True)
class Api:
    """Requests to kube-apiserver with one token."""

    url: str
    ca_file: Path
    token: str

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        """One request; None as the result when the object is not there. Raises: OSError."""
        try:
            with self._open(method, path, body, kind) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404 and method != "POST":
                return None
            raise OSError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:500]}") from None

    def watch(self, path: str) -> Iterator[Any]:
        """Events as they come. Raises: OSError when the connection ends."""
        with self._open("GET", path, None, "") as answer:
            for line in answer:
                yield json.loads(line)

    def _open(self, method: str, path: str, body: Any, kind: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        return urllib.request.urlopen(request, context=ssl.create_default_context(cafile=str(self.ca_file)))


@dataclass(frozen=True)
class KubernetesCluster:
    """A running cluster."""

    #: For `master`: k8s://https://HOST:PORT.
    master: str
    #: Of the API's certificate.
    ca_file: Path
    #: A token with the rights of DRIVER_RULES in NAMESPACE, and a file for KUBECONFIG with it.
    token_file: Path
    kubeconfig: Path
    #: Every right.
    admin: Api
    node: Node


@contextmanager
def cluster(directory: Path, programs: tuple[str, str], environment: Mapping[str, str]) -> Iterator[KubernetesCluster]:
    """Run a cluster. `environment`: of the image of its pods, beside what a pod sets.

    Raises: RuntimeError when a process does not start.
    """
    etcd, apiserver = programs
    tokens = {name: secrets.token_hex(16) for name in ("admin", "driver")}
    (directory / "tokens.csv").write_text(f"{tokens['admin']},admin,1,system:masters\n{tokens['driver']},driver,2\n")
    (directory / "driver-token").write_text(tokens["driver"])
    key = directory / "service-accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    client_url, peer_url = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
    port = _free_port()
    with ExitStack() as ending:
        arguments = ["--data-dir", str(directory / "etcd"), "--listen-client-urls", client_url, "--advertise-client-urls", client_url]
        arguments += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"default={peer_url}"]
        ending.enter_context(_running(directory / "etcd.log", etcd, *arguments))
        arguments = [
            f"--etcd-servers={client_url}", "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={directory}/certificates",
            f"--token-auth-file={directory}/tokens.csv", "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
            # Debian's etcd 3.4.23 has no progress requests, which this needs. Clients then list before they watch.
            "--feature-gates=WatchList=false",
        ]  # fmt: skip
        process = ending.enter_context(_running(directory / "kube-apiserver.log", apiserver, *arguments))
        admin = Api(f"https://127.0.0.1:{port}", directory / "certificates" / "apiserver.crt", tokens["admin"])
        _wait_ready(admin, process, directory / "kube-apiserver.log")
        _prepare(admin)
        node = ending.enter_context(Node(admin, directory / "pods", environment))
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(admin, tokens["driver"])))
        yield KubernetesCluster(f"k8s://{admin.url}", admin.ca_file, directory / "driver-token", kubeconfig, admin, node)


def _prepare(admin: Api) -> None:
    """A namespace with the account of its pods, and the driver's rights."""
    rights = "rbac.authorization.k8s.io"
    role = {"metadata": {"name": "spark-driver"}, "rules": DRIVER_RULES}
    binding = {
        "metadata": {"name": "spark-driver"},
        "subjects": [{"kind": "User", "name": "driver", "apiGroup": rights}],
        "roleRef": {"kind": "Role", "name": "spark-driver", "apiGroup": rights},
    }
    admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    admin.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
    admin.call("POST", f"/apis/{rights}/v1/namespaces/{NAMESPACE}/roles", role)
    admin.call("POST", f"/apis/{rights}/v1/namespaces/{NAMESPACE}/rolebindings", binding)


def _kubeconfig(admin: Api, token: str) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": admin.url, "certificate-authority": str(admin.ca_file)}}],
        "users": [{"name": "driver", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "driver", "namespace": NAMESPACE}}],
        "current-context": "here",
    }


class Node:
    """Runs the pods of Spark's executors as processes, until the block ends."""

    def __init__(self, api: Api, directory: Path, environment: Mapping[str, str]) -> None:
        self._api = api
        self._directory = directory
        self._image = dict(environment)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._ending = False
        #: Each pod as Spark created it, and each config map that one mounts.
        self.seen: list[Any] = []

    def __enter__(self) -> Node:
        self._directory.mkdir()
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        for process in list(self._processes.values()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def running(self) -> dict[str, int]:
        """The process of each running pod, by its name."""
        return {name: process.pid for name, process in list(self._processes.items()) if process.poll() is None}

    def _follow(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        while not self._ending:
            with suppress(OSError):
                found = self._api.call("GET", path)
                for pod in found["items"]:
                    self._take(pod)
                for event in self._api.watch(f"{path}?watch=1&resourceVersion={found['metadata']['resourceVersion']}"):
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._take(event["object"])

    def _take(self, pod: Any) -> None:
        name = pod["metadata"]["name"]
        process = self._processes.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            if process is not None and process.poll() is None:
                # As a kubelet does; its wait for the grace period is left out.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            self._api.call("DELETE", _path(pod), {"gracePeriodSeconds": 0})
        elif process is None and pod["status"]["phase"] == "Pending":
            self._start(pod)

    def _start(self, pod: Any) -> None:
        name = pod["metadata"]["name"]
        self._started += 1
        address, home = f"127.0.1.{self._started}", self._directory / name
        home.mkdir()
        self.seen.append(pod)
        target = {"target": {"apiVersion": "v1", "kind": "Node", "name": "here"}, "metadata": {"name": name}}
        self._api.call("POST", _path(pod) + "/binding", target)
        environment = self._environment(pod, address, self._mounts(pod, home))
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                _executor(environment), env=environment, cwd=home, stdout=log, stderr=log, start_new_session=True, stdin=subprocess.DEVNULL
            )
        self._processes[name] = process
        self._report(pod, "Running", address, {"running": {}})
        threading.Thread(target=self._await, args=(pod, process, address), daemon=True).start()

    def _await(self, pod: Any, process: subprocess.Popen[bytes], address: str) -> None:
        code = process.wait()
        ended = {"terminated": {"exitCode": code if code >= 0 else 128 - code, "reason": "Completed" if code == 0 else "Error"}}
        if not self._ending:
            self._report(pod, "Succeeded" if code == 0 else "Failed", address, ended)

    def _report(self, pod: Any, phase: str, address: str, state: Any) -> None:
        container = pod["spec"]["containers"][0]
        status = {"name": container["name"], "image": container["image"], "imageID": "", "ready": phase == "Running", "restartCount": 0}
        change = {"phase": phase, "podIP": address, "podIPs": [{"ip": address}], "containerStatuses": [{**status, "state": state}]}
        self._api.call("PATCH", _path(pod) + "/status", {"status": change}, kind="application/merge-patch+json")

    def _mounts(self, pod: Any, home: Path) -> dict[str, str]:
        """The directory of each mounted volume, by the path in the container."""
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", [])}
        mounts = {}
        for mount in pod["spec"]["containers"][0].get("volumeMounts", []):
            path, volume = home / "volumes" / mount["name"], volumes[mount["name"]]
            path.mkdir(parents=True, exist_ok=True)
            mounts[mount["mountPath"]] = str(path)
            if "configMap" in volume:
                content = self._api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{volume['configMap']['name']}")
                self.seen.append(content)
                for name, text in content.get("data", {}).items():
                    (path / name).write_text(text)
            if "secret" in volume:
                content = self._api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{volume['secret']['secretName']}")
                for name, text in content.get("data", {}).items():
                    (path / name).write_bytes(base64.b64decode(text))
        return mounts

    def _environment(self, pod: Any, address: str, mounts: Mapping[str, str]) -> dict[str, str]:
        environment = dict(self._image)
        for variable in pod["spec"]["containers"][0].get("env", []):
            given = variable.get("valueFrom", {})
            value = str(variable.get("value", ""))
            if "secretKeyRef" in given:
                secret = self._api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{given['secretKeyRef']['name']}")
                value = base64.b64decode(secret["data"][given["secretKeyRef"]["key"]]).decode()
            elif "fieldRef" in given:
                field = given["fieldRef"]["fieldPath"]
                value = address if field == "status.podIP" else str(pod["metadata"][field.removeprefix("metadata.")])
            for inside, outside in mounts.items():
                value = value.replace(inside, outside)
            environment[variable["name"]] = value
        return environment | {"SPARK_LOCAL_IP": address}


def _executor(environment: Mapping[str, str]) -> list[str]:
    """The command that the entrypoint of Spark's image makes of a pod's environment."""
    options = sorted((name for name in environment if name.startswith("SPARK_JAVA_OPT_")), key=lambda name: int(name.rpartition("_")[2]))
    of = environment
    classes = os.pathsep.join([of["SPARK_CONF_DIR"], f"{of['SPARK_HOME']}/jars/*"])
    memory = of["SPARK_EXECUTOR_MEMORY"]
    return [
        str(java_home() / "bin" / "java"), *(of[name] for name in options), f"-Xms{memory}", f"-Xmx{memory}", "-cp", classes,
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend", "--driver-url", of["SPARK_DRIVER_URL"],
        "--executor-id", of["SPARK_EXECUTOR_ID"], "--cores", of["SPARK_EXECUTOR_CORES"], "--app-id", of["SPARK_APPLICATION_ID"],
        "--hostname", of["SPARK_EXECUTOR_POD_IP"], "--resourceProfileId", of["SPARK_RESOURCE_PROFILE_ID"],
        "--podName", of["SPARK_EXECUTOR_POD_NAME"],
    ]  # fmt: skip


def _path(pod: Any) -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_ready(api: Api, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError, ValueError):
            if api.ca_file.exists() and api.call("GET", "/api/v1/namespaces/default") is not None:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"kube-apiserver does not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


@contextmanager
def _running(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as said:
        child = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    try:
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
