"""NetworkPolicies as packet filter rules of each pod."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import Any, Final

from tests.deploy.manifests import Document, Pod

HEAD: Final = """table inet network_policies
delete table inet network_policies
table inet network_policies {{
  chain pod_ingress {{
    type filter hook input priority 0; policy accept;
    iif lo accept
    ct state established,related accept
    ip saddr {node} accept
{ingress}
  }}
  chain pod_egress {{
    type filter hook output priority 0; policy accept;
    oif lo accept
    ct state established,related accept
{egress}
  }}
}}
"""
"""The node's own probes reach every pod, as Kubernetes has it."""


def rules_of(pod: Pod, policies: list[Document], addresses: Mapping[str, Pod], node: str) -> str:
    """Write the rules of one pod for `nft -f`.

    Args:
        pod: whose rules.
        policies: every NetworkPolicy of its namespace.
        addresses: every pod of the namespace, by its address.
        node: address from which the pods are probed.
    """
    chosen = [each["spec"] for each in policies if _selects(each["spec"]["podSelector"], pod)]
    written = {}
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        concerned = [spec for spec in chosen if direction.capitalize() in spec["policyTypes"]]
        lines = [
            f"{peer}{ports} accept"
            for spec in concerned
            for rule in spec.get(direction, [])
            for peer in _peers(rule.get(peers), addresses, "saddr" if direction == "ingress" else "daddr")
            for ports in _ports(rule.get("ports"), pod)
        ]
        written[direction] = "\n".join(f"    {line}" for line in [*lines, *(["drop"] if concerned else [])])
    return HEAD.format(node=node, **written)


def _selects(selector: dict[str, Any], pod: Pod) -> bool:
    if set(selector) - {"matchLabels"}:
        raise NotImplementedError(f"selector {selector}")
    labels: dict[str, str] = selector.get("matchLabels", {})
    return labels.items() <= pod.labels.items()


def _peers(peers: list[dict[str, Any]] | None, addresses: Mapping[str, Pod], side: str) -> Iterator[str]:
    """Conditions on the other side, one for each peer; a rule without peers has none."""
    if peers is None:
        yield ""
        return
    for peer in peers:
        if set(peer) == {"podSelector"}:
            found = [address for address, pod in addresses.items() if _selects(peer["podSelector"], pod)]
            if found:
                yield f"ip {side} {{ {', '.join(sorted(found))} }} "
        elif set(peer) == {"ipBlock"}:
            block = peer["ipBlock"]
            family = "ip" if ip_network(block["cidr"]).version == 4 else "ip6"
            without = f"{family} {side} != {{ {', '.join(block['except'])} }} " if block.get("except") else ""
            yield f"{family} {side} {block['cidr']} {without}"
        else:
            raise NotImplementedError(f"peer {peer}")


def _ports(ports: list[dict[str, Any]] | None, pod: Pod) -> Iterator[str]:
    if ports is None:
        yield ""
        return
    for port in ports:
        number = port["port"] if isinstance(port["port"], int) else pod.ports()[port["port"]]
        yield f"{port.get('protocol', 'TCP').lower()} dport {number}"
