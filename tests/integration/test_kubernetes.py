"""The example overlays of deploy/k8s: rendered, valid by the schemas of Kubernetes, and whole."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

K8S = Path(__file__).resolve().parents[2] / "deploy" / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
OF_OTHERS = {"ServiceMonitor"}  # of the Prometheus operator: Kubernetes has no schema for it
GIVEN = {  # what deploy/README.md tells people to create
    "Secret": {
        "hansa-controller-tls",
        "hansa-learner-tls",
        "hansa-evaluator-tls",
        "hansa-redis-tls",
        "hansa-redis",
        "hansa-prometheus-tls",
    },
    "ConfigMap": {"hansa-app"},
    "PersistentVolumeClaim": {"hansa-data"},
}
Object = Mapping[str, Any]


@cache
def rendered(overlay: str) -> tuple[Object, ...]:
    tool = shutil.which("kubectl")
    if not tool:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [tool, "kustomize", str(K8S / "overlays" / overlay)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unknown field" in done.stderr and "components" in done.stderr:
        pytest.skip("kubectl is older than 1.21 and does not know components")
    assert (done.returncode, done.stderr) == (0, "")
    return tuple(yaml.safe_load_all(done.stdout))


def pods(objects: tuple[Object, ...]) -> Iterator[tuple[Object, Object]]:
    """Yield what makes pods, with their template."""
    for each in objects:
        if "template" in each.get("spec", {}):
            yield each, each["spec"]["template"]


def chosen(selector: Mapping[str, str], objects: tuple[Object, ...]) -> list[Object]:
    """Return the templates of pods that a selector chooses."""
    labels = [(template, template["metadata"]["labels"]) for _, template in pods(objects)]
    return [template for template, labelled in labels if selector.items() <= labelled.items()]


def ports_of(templates: list[Object]) -> set[object]:
    ports = [
        port for each in templates for container in each["spec"]["containers"]
        for port in container.get("ports", ())
    ]  # fmt: skip
    return {port["name"] for port in ports} | {port["containerPort"] for port in ports}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_valid(overlay: str) -> None:
    for each in rendered(overlay):
        if each["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
        assert each["metadata"]["namespace"] == "hansa"


def test_the_schemas_are_strict() -> None:
    policy = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "x"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(policy | {"spec": {"minimum": 1}}, "1.37", strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_whatever_an_object_refers_to_is_there(overlay: str) -> None:
    objects = rendered(overlay)
    names = {kind: set(given) for kind, given in GIVEN.items()}
    for each in objects:
        names.setdefault(each["kind"], set()).add(each["metadata"]["name"])
    for maker, template in pods(objects):
        pod = template["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        claims = {claim["metadata"]["name"] for claim in maker["spec"].get("volumeClaimTemplates", ())}
        for container in pod["containers"]:
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= volumes.keys() | claims
            for source in container.get("envFrom", ()):
                assert source["configMapRef"]["name"] in names["ConfigMap"]
        for volume in volumes.values():
            if "secret" in volume:
                assert volume["secret"]["secretName"] in names["Secret"]
            if "configMap" in volume:
                assert volume["configMap"]["name"] in names["ConfigMap"]
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in names["PersistentVolumeClaim"]
        assert pod.get("serviceAccountName", "default") in names.get("ServiceAccount", set()) | {"default"}
        assert maker["spec"].get("serviceName", "") in names.get("Service", set()) | {""}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_choose_pods_and_ports_that_exist(overlay: str) -> None:
    objects = rendered(overlay)
    services = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Service"}
    for each in objects:
        spec = each.get("spec", {})
        match each["kind"]:
            case "Service":
                templates = chosen(spec["selector"], objects)
                assert len(templates) == 1
                assert {port["targetPort"] for port in spec["ports"]} <= ports_of(templates)
            case "PodDisruptionBudget":
                assert chosen(spec["selector"]["matchLabels"], objects)
            case "NetworkPolicy":
                templates = chosen(spec["podSelector"]["matchLabels"], objects)
                assert templates
                ports = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
                assert ports <= ports_of(templates)
            case "ServiceMonitor":
                wanted = spec["selector"]["matchLabels"].items()
                found = [one for one in services.values() if wanted <= one["metadata"]["labels"].items()]
                assert len(found) == 1
                assert spec["endpoints"][0]["port"] in {port["name"] for port in found[0]["spec"]["ports"]}
                assert spec["endpoints"][0]["honorLabels"]  # `job` is a label of our own
            case "Ingress":
                (path,) = spec["rules"][0]["http"]["paths"]
                service = services[path["backend"]["service"]["name"]]
                assert service["spec"]["type"] == "ClusterIP"
                named = {port["name"] for port in service["spec"]["ports"]}
                assert path["backend"]["service"]["port"]["name"] in named


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_is_confined_and_under_a_network_policy(overlay: str) -> None:
    objects = rendered(overlay)
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    for _, template in pods(objects):
        assert template["spec"]["securityContext"]["runAsNonRoot"]
        assert not template["spec"]["automountServiceAccountToken"]
        labels = template["metadata"]["labels"].items()
        over = [policy for policy in policies if policy["podSelector"]["matchLabels"].items() <= labels]
        assert over
        assert all(policy["policyTypes"] == ["Ingress", "Egress"] for policy in over)
        for container in template["spec"]["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["readinessProbe"]
            assert container["livenessProbe"]
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("overlay", [name for name in OVERLAYS if name.startswith("site")])
def test_a_site_opens_no_port_and_reaches_only_its_controller(overlay: str) -> None:
    (policy,) = [each["spec"] for each in rendered(overlay) if each["kind"] == "NetworkPolicy"]
    assert policy["ingress"] == []
    controller, names = policy["egress"]
    (place,) = controller["to"]
    assert place["ipBlock"]["cidr"].endswith("/32")
    assert {port["port"] for port in controller["ports"]} == {7300}
    assert {port["port"] for port in names["ports"]} == {53}
    assert "namespaceSelector" in names["to"][0]


def test_a_controller_dials_nobody_but_its_redis() -> None:
    def egress(overlay: str) -> list[Any]:
        policies = [each for each in rendered(overlay) if each["kind"] == "NetworkPolicy"]
        (policy,) = [each for each in policies if each["metadata"]["name"] == "hansa-controller"]
        return list(policy["spec"]["egress"])

    assert egress("hub") == []
    redis, names = egress("hub-redis")
    assert chosen(redis["to"][0]["podSelector"]["matchLabels"], rendered("hub-redis"))
    assert {port["port"] for port in names["ports"]} == {53}


def test_the_learner_gets_the_gpu() -> None:
    for maker, template in pods(rendered("site-gpu")):
        (container,) = template["spec"]["containers"]
        has_gpu = "nvidia.com/gpu" in json.dumps(container["resources"])
        assert has_gpu == (maker["metadata"]["name"] == "hansa-learner")


def test_the_readme_names_what_must_be_created_first() -> None:
    text = (K8S.parent / "README.md").read_text(encoding="utf-8")
    for names in GIVEN.values():
        for name in names:
            assert re.search(rf"\b{name}\b", text), name
