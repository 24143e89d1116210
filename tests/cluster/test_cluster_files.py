"""cluster/: what can be said of its files without a cluster. That they work on one is not tested here."""

import configparser
import os
import re
import subprocess
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster"
MANIFESTS = ("mlflow.yaml", "ray-cluster.dev.yaml", "ray-job.sweep.yaml", "storage.yaml")
LAUNCHERS = ("aws.yaml", "gcp.yaml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RAY = re.compile(r"\b(?:rayproject/ray:|raydiff:ray-|ray==|rayVersion: \")(\d+\.\d+\.\d+)")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def walk(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at whatever depth."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield key, value
        yield from walk(value)
    for value in tree if isinstance(tree, list) else ():
        yield from walk(value)


def text_files() -> list[Path]:
    return sorted(p for p in CLUSTER.iterdir() if p.is_file())


# --- versions and secrets ---


def test_there_is_one_ray_and_the_project_allows_it() -> None:
    versions = {version for path in text_files() for version in RAY.findall(path.read_text())}
    assert len(versions) == 1
    (needed,) = (r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "ray")
    assert needed.specifier.contains(Version(versions.pop()))


def test_the_constraints_name_a_version_of_each_dependency_that_the_project_allows() -> None:
    lines = (CLUSTER / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", str(pin)) for pin in pins)  # neither addresses nor markers
    version = {pin.name: next(iter(pin.specifier)).version for pin in pins}
    needed = [Requirement(r) for r in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["bucket"])]
    for r in needed:
        assert r.specifier.contains(Version(version[r.name.replace("_", "-")])), r.name


def test_images_are_official_or_built_here_and_carry_a_version() -> None:
    official = re.compile(r"(rayproject/ray:\d+\.\d+\.\d+-py3\d+-gpu|raydiff:ray-[\d.]+|postgres:\d+)")
    official_mlflow = re.compile(r"ghcr\.io/mlflow/mlflow:v3\.\d+\.\d+-full")
    images = [v for name in (*MANIFESTS, *LAUNCHERS) for d in documents(name) for k, v in walk(d) if k == "image"]
    images += re.findall(r"^FROM (\S+)", (CLUSTER / "Dockerfile").read_text(), flags=re.M)
    assert len(images) >= 9
    assert [i for i in images if not (official.fullmatch(i) or official_mlflow.fullmatch(i))] == []


@pytest.mark.parametrize("name", ["Dockerfile", *LAUNCHERS])
def test_nodes_can_store_in_a_bucket(name: str) -> None:
    assert re.findall(r"pip install .*constraints\.txt '[~/.\w]+\[bucket\]'", (CLUSTER / name).read_text())


def test_the_images_python_is_one_that_the_project_allows() -> None:
    (digits,) = {p for path in text_files() for p in re.findall(r"ray:[\d.]+-py(\d+)", path.read_text())}
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{digits[0]}.{digits[1:]}")


def secrets_in(text: str) -> list[str]:
    named = r"(?i:password|secret_access_key|token)[\"']?\s*[:=]\s*[\"']?[\w+/]{8,}"
    return re.findall(rf"AKIA[0-9A-Z]{{16}}|-----BEGIN|\b[0-9a-f]{{32,}}\b|{named}", text)


@pytest.mark.parametrize("path", text_files(), ids=lambda p: p.name)
def test_no_secret_is_written_down(path: Path) -> None:
    assert secrets_in(path.read_text()) == []


@pytest.mark.parametrize(
    "text", ["password: hunter2hunter2", "AWS_SECRET_ACCESS_KEY=abc/defghij", "token: " + "0f" * 32, "AKIA" + "B" * 16]
)
def test_a_secret_would_be_seen(text: str) -> None:
    assert secrets_in(text)


# --- the job's environment, and what it ships ---


def test_a_job_ships_the_code_and_little_else(tmp_path: Path) -> None:
    """With Ray's own packing: .gitignore and .rayignore are read in each folder of the working directory."""
    from ray._private.runtime_env.packaging import create_package

    create_package(str(ROOT), tmp_path / "package.zip", include_gitignore=True, excludes=[".git"])
    names = zipfile.ZipFile(tmp_path / "package.zip").namelist()
    code = {str(p.relative_to(ROOT)) for top in ("raydiff", "jobs", "analysis") for p in (ROOT / top).rglob("*.py")}
    assert code <= set(names)
    assert {name.split("/")[0] for name in names} & {".git", "tests", "docs", "cluster"} == set()
    assert (tmp_path / "package.zip").stat().st_size < 10 * 2**20  # the dashboard takes 100 MiB


SECRETS = (".env", ".env.local", "key.pem", "tls.key", "id_rsa", "credentials.json", "mlflow.db", "a.sqlite3")


def test_a_job_ships_no_secrets_and_no_databases(tmp_path: Path) -> None:
    from ray._private.runtime_env.packaging import create_package

    folder = tmp_path / "checkout"
    for name in (*SECRETS, "mlruns/x", "jobs/.env", "kept.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    for name in (".rayignore", ".gitignore"):
        (folder / name).write_text((ROOT / name).read_text())
    create_package(str(folder), tmp_path / "package.zip", include_gitignore=True, excludes=[".git"])
    files = {name for name in zipfile.ZipFile(tmp_path / "package.zip").namelist() if not name.endswith("/")}
    assert files == {"kept.py", ".rayignore", ".gitignore"}


@pytest.mark.parametrize("path", text_files(), ids=lambda p: p.name)
def test_dashboards_are_bound_to_the_head(path: Path) -> None:
    """Ray's own default is the head too; a dashboard that anybody reaches takes jobs."""
    commands = path.read_text().replace("\\\n", " ")
    heads = [line for line in commands.splitlines() if re.search(r"(ray start|^ *node head) .*--head", line)]
    assert len(heads) == (path.name in ("aws.yaml", "gcp.yaml", "local.sh"))
    assert all("--dashboard-host=127.0.0.1" in line for line in heads)


# --- ray up ---


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_mount_is_not_open_to_everyone(name: str) -> None:
    commands = [c for key, value in walk(documents(name)[0]) if key.endswith("commands") for c in value]
    modes = re.findall(r"(?:chmod|install -d -m|mkdir -m) (\S+)", "\n".join(commands))
    assert modes and set(modes) == {"700"}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_launcher_accepts_it(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    (config,) = documents(name)
    validate_config(prepare_config(config))
    with pytest.raises(Exception, match="idle_minutes"):
        validate_config(prepare_config({**config, "idle_minutes": 5}))
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"] == {"CPU": 0}
    assert "-e RAY_AUTH_MODE=token" in config["docker"]["run_options"] and "~/.ray/auth_token" in config["file_mounts"]
    assert all(
        (ROOT / local).exists() for remote, local in config["file_mounts"].items() if remote != "~/.ray/auth_token"
    )


# --- Kubernetes ---


def check_pod(pod: dict[str, Any]) -> None:
    """What no schema says."""
    spec = pod["spec"]
    volumes = {v["name"] for v in spec["volumes"]}
    assert spec["containers"] and spec["securityContext"]["runAsNonRoot"]
    for container in spec["containers"]:
        assert {m["name"] for m in container["volumeMounts"]} <= volumes
        assert container["resources"]["requests"] == container["resources"]["limits"]  # Ray's logical sizes


def check_ray_cluster(spec: dict[str, Any]) -> None:
    assert RAY.findall(f'rayVersion: "{spec["rayVersion"]}"') and spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    check_pod(spec["headGroupSpec"]["template"])
    for group in spec["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        check_pod(group["template"])
        assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] >= 1
        assert group["template"]["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_the_development_cluster() -> None:
    (cluster,) = documents("ray-cluster.dev.yaml")
    spec = cluster["spec"]
    check_ray_cluster(spec)
    assert spec["enableInTreeAutoscaling"] is True and spec["autoscalerOptions"]["version"] == "v2"
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert {g["template"]["spec"]["restartPolicy"] for g in groups} == {"Never"}  # autoscaler v2 insists on it


def test_the_sweep_as_a_job() -> None:
    (job,) = documents("ray-job.sweep.yaml")
    spec = job["spec"]
    check_ray_cluster(spec["rayClusterSpec"])
    shared = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert set(documents("runtime_env.yaml")[0]["env_vars"].items()) <= set(shared.items())
    assert shared["MLFLOW_TRACKING_URI"] == "http://mlflow:5000" and spec["activeDeadlineSeconds"] >= 86_400


def strict(schema: Any) -> Any:
    """The same, which takes no field that it does not name."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {k: strict(v) for k, v in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    return schema


@pytest.mark.network
@pytest.mark.parametrize("name", ["ray-cluster.dev.yaml", "ray-job.sweep.yaml"])
def test_kuberay_s_own_schema_takes_it_and_sees_a_typo(name: str) -> None:
    """That of the oldest version that the manifests name; RAYDIFF_CRDS names another folder of them, as a URL."""
    import jsonschema

    kuberay = "https://raw.githubusercontent.com/ray-project/kuberay/v1.5.1/helm-chart/kuberay-operator/crds"
    (manifest,) = documents(name)
    kind = f"ray.io_{manifest['kind'].lower()}s.yaml"
    with urllib.request.urlopen(f"{os.environ.get('RAYDIFF_CRDS', kuberay)}/{kind}") as crd:
        versions = {v["name"]: v["schema"]["openAPIV3Schema"] for v in yaml.safe_load(crd)["spec"]["versions"]}
    spec = strict(versions[manifest["apiVersion"].removeprefix("ray.io/")]["properties"]["spec"])
    jsonschema.validate(manifest["spec"], spec)
    ray = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    ray["headGroupSpec"]["template"]["spec"]["containers"][0]["enviroment"] = []
    with pytest.raises(jsonschema.ValidationError, match="'enviroment' was unexpected"):
        jsonschema.validate(manifest["spec"], spec)


def test_the_jobs_entrypoint_is_a_command_that_the_sweep_takes() -> None:
    from raydiff.cli import arguments as command, sweep
    from raydiff.cli.options import parse_command
    from raydiff.experiment import overrides as settings

    python, script, *arguments = documents("ray-job.sweep.yaml")[0]["spec"]["entrypoint"].split()
    assert python == "python" and (ROOT / script.removeprefix("/home/ray/raydiff/")).exists()
    assert "--resume" in arguments  # a retry is a new cluster
    _, study, rest = command.split_preset(arguments)
    options, overrides = parse_command(sweep.SweepOptions, rest, None, study.experiment)
    storage = settings.override(study.experiment, settings.parse_fields(study.experiment, overrides)).runtime.storage
    mounts = [m["mountPath"] for k, v in walk(documents("ray-job.sweep.yaml")[0]) if k == "volumeMounts" for m in v]
    assert options.name and len(mounts) == 2 and all(storage.startswith(m + "/") for m in mounts)


def test_the_mlflow_server() -> None:
    by_kind = {(d["kind"], d["metadata"]["name"]): d for d in documents("mlflow.yaml")}
    of = {
        "mlflow": ["Service", "NetworkPolicy", "Deployment"],
        "mlflow-db": ["Service", "NetworkPolicy", "StatefulSet"],
    }
    assert set(by_kind) == {(k, n) for n, ks in of.items() for k in ks} | {("ConfigMap", "mlflow-auth")}
    for (kind, _), d in by_kind.items():
        if kind == "Service":
            assert d["spec"].get("type", "ClusterIP") == "ClusterIP"  # what travels is not encrypted
        elif "selector" in d.get("spec", {}):
            assert d["spec"]["selector"]["matchLabels"] == d["spec"]["template"]["metadata"]["labels"]
    (server,) = by_kind["Deployment", "mlflow"]["spec"]["template"]["spec"]["containers"]
    options = dict(zip(*[iter([*server["command"][2:], *server["args"]])] * 2, strict=True))
    assert options["--allowed-hosts"].split(",")[:2] == ["mlflow", "mlflow:5000"]
    assert options["--app-name"] == "basic-auth"


def test_who_reaches_the_mlflow_server_and_its_database() -> None:
    """Heads of Ray clusters and the server, each on one port; the policies select the pods that there are."""
    manifests = documents("mlflow.yaml")
    policies = {d["metadata"]["name"]: d["spec"] for d in manifests if d["kind"] == "NetworkPolicy"}
    pods = {d["metadata"]["name"]: d["spec"]["template"] for d in manifests if "template" in d.get("spec", {})}
    for name, who, port in (("mlflow", {"ray.io/node-type": "head"}, 5000), ("mlflow-db", {"app": "mlflow"}, 5432)):
        assert policies[name]["podSelector"]["matchLabels"] == pods[name]["metadata"]["labels"]
        (rule,) = policies[name]["ingress"]
        assert policies[name]["policyTypes"] == ["Ingress"] and rule["ports"] == [{"port": port}]
        assert rule["from"] == [{"podSelector": {"matchLabels": who}}]


def test_the_login_is_where_the_server_reads_it_and_drivers_have_it() -> None:
    by_kind = {d["kind"]: d for d in documents("mlflow.yaml")}
    (server,) = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    ((name, text),) = by_kind["ConfigMap"]["data"].items()
    (mount,) = server["volumeMounts"]
    assert {e["name"]: e.get("value") for e in server["env"]}[
        "MLFLOW_AUTH_CONFIG_PATH"
    ] == f"{mount['mountPath']}/{name}"
    login = configparser.ConfigParser()
    login.read_string(text)
    assert login["mlflow"]["default_permission"] == "NO_PERMISSIONS" and "admin_password" not in login["mlflow"]
    assert login["mlflow"]["database_uri"].startswith("postgresql")  # a pod's own files go with it
    (options,) = [e for e in server["env"] if e["name"] == "PGPASSWORD"]
    assert options["valueFrom"]["secretKeyRef"] == {"name": "raydiff-mlflow", "key": "POSTGRES_PASSWORD"}
    for manifest in ("ray-cluster.dev.yaml", "ray-job.sweep.yaml"):
        (tree,) = documents(manifest)
        (head,), (workers,) = ([v for k, v in walk(tree) if k == of] for of in ("headGroupSpec", "workerGroupSpecs"))
        of_head, of_worker = (
            [source["secretRef"] for source in group["template"]["spec"]["containers"][0]["envFrom"]]
            for group in (head, workers[0])
        )
        assert of_worker == [{"name": "raydiff-bucket", "optional": True}]
        assert of_head == [{"name": "raydiff-driver", "optional": True}, *of_worker]
        assert "raydiff-mlflow" not in (CLUSTER / manifest).read_text()  # the admin's password is the server's alone


def test_the_volumes_that_are_claimed_are_made() -> None:
    claim = {d["metadata"]["name"] for d in documents("storage.yaml")}
    used = {v["claimName"] for n in MANIFESTS for d in documents(n) for k, v in walk(d) if k == "persistentVolumeClaim"}
    assert used == claim


# --- local.sh ---


def test_local_sh_ends_only_what_it_started() -> None:
    source = (CLUSTER / "local.sh").read_text()
    assert "set -euo pipefail" in source
    assert not re.search(r"ray stop|pkill|killall|rm -rf /|\brm -rf \$", source)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "cluster/local.sh start"),
        (("env",), "no cluster is running"),
        (("start", "0"), "NODES and CPUS are positive integers"),
        (("start", "2", "x"), "NODES and CPUS are positive integers"),
    ],
)
def test_local_sh_refuses_in_a_sentence(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(CLUSTER / "local.sh"), *arguments],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and says in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
