"""Spark on Kubernetes in client mode: a pipeline and a job on pods that a real kube-apiserver keeps and a node of ours runs as processes.

chaos/kubernetes.py has what that node stands for. The pods have a Python without this environment; Ottla reaches them as an archive.
"""

import base64
import json
import os
import signal
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from chaos.kubernetes import BINARIES, NAMESPACE, KubernetesCluster, cluster, find

import ottla
from ottla.spark.java import java_home
from ottla.testing import broker

from .cluster_run import PASSWORD, USER, ClusterRun, Exposed, files_with_password, run_job, send_packages

pytestmark = [
    pytest.mark.spark, pytest.mark.server, pytest.mark.long, pytest.mark.xdist_group("spark_processes"), pytest.mark.timeout(1800),
    pytest.mark.skipif(find() is None, reason=f"etcd or kube-apiserver is neither on the PATH nor in the directory {BINARIES}"),
]  # fmt: skip

HOME = Path(str(pyspark.__file__)).parent
OTHERS = sysconfig.get_path("platlib")
PYTHON = getattr(sys, "_base_executable", sys.executable)
LAKE_SECRET = "s3cret-of-the-lake"


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    programs = find()
    assert programs is not None
    image = {"PATH": os.environ["PATH"], "SPARK_HOME": str(HOME), "JAVA_HOME": str(java_home())}
    with cluster(tmp_path_factory.mktemp("kubernetes"), programs, image) as started:
        secret = {"metadata": {"name": "lake"}, "data": {"secret": base64.b64encode(LAKE_SECRET.encode()).decode()}}
        started.admin.call("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
        yield started


def settings(kubernetes: KubernetesCluster, directory: Path) -> dict[str, str]:
    """Of a driver outside of the cluster, without the names' prefix."""
    send_packages(directory / "packages.tar")
    return {
        "kubernetes.namespace": NAMESPACE,
        "kubernetes.container.image": "ottla-spark",
        "kubernetes.executor.secretKeyRef.LAKE_SECRET": "lake:secret",
        "archives": f"{directory}/packages.tar#packages",
        "executorEnv.PYTHONPATH": os.pathsep.join(["packages", OTHERS]),
        "executor.memory": "1g",
        "executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "driver.host": "127.0.0.1",
        "sql.shuffle.partitions": "2",
    }


def test_a_pipeline_is_exact_when_pods_and_the_driver_are_killed(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    spark = settings(kubernetes, tmp_path) | {"master": kubernetes.master, "executor.instances": "2"}
    spark |= {"eventLog.enabled": "true", "eventLog.dir": f"file://{events}"}
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    environment = {"PYSPARK_PYTHON": PYTHON, "KUBECONFIG": str(kubernetes.kubeconfig)}
    with (
        broker(users={USER: PASSWORD}, settings={"transaction.two.phase.commit.enable": "true"}) as brokers,
        ClusterRun(brokers, tmp_path, str(tmp_path / "checkpoint"), spark, environment) as run,
        Exposed() as exposed,
    ):
        run.work()
        name, process = next(iter(kubernetes.node.running().items()))
        assert f"LAKE_SECRET={LAKE_SECRET}".encode() in Path(f"/proc/{process}/environ").read_bytes()
        os.kill(process, signal.SIGKILL)
        run.work()
        name = next(iter(kubernetes.node.running()))
        kubernetes.admin.call("DELETE", f"{pods}/{name}")
        run.work()
        run.kill()
        run.start()
        run.work()
        run.finish()
        run.check()
    assert exposed.found == set()
    created = json.dumps(kubernetes.node.seen)
    assert "SPARK_EXECUTOR_ID" in created
    assert PASSWORD not in created
    assert LAKE_SECRET not in created
    # Pods with their volumes and logs, what etcd and the API's log have, the event log.
    assert files_with_password(kubernetes.ca_file.parents[1], events) == []


def test_a_job_finds_the_package_in_its_archive(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))}
    environment |= {"SPARK_HOME": str(HOME), "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": PYTHON}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(str(ottla.__file__)).parents[1]), OTHERS])
    # As a machine without a kubeconfig: a token and the authority of the API's certificate.
    access = {"caCertFile": str(kubernetes.ca_file), "oauthTokenFile": str(kubernetes.token_file)}
    given = settings(kubernetes, tmp_path) | {f"kubernetes.authenticate.{name}": value for name, value in access.items()}
    submit = [str(HOME / "bin" / "spark-submit"), "--master", kubernetes.master, "--num-executors", "1"]
    submit += [part for name, value in given.items() for part in ("--conf", f"spark.{name}={value}")]
    printed = run_job(submit, environment, tmp_path)
    reported = json.loads(printed.splitlines()[-1])
    assert reported["count"] == 60
    assert reported["where"][0].split(os.sep)[-3:] == ["packages", "ottla", "__init__.py"], "it was sent with the job"
