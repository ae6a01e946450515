"""What `init` decides: the address, the pool, the settings, and the token and authority."""

from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from fleet_examples import manager, probe, swarm

from swarmctl.errors import SwarmctlError, UsageError
from swarmctl.fleet import authority, init
from swarmctl.fleet.actions import CreateSwarm, Discard, Store, UpdateSwarm
from swarmctl.fleet.facts import Address, Route

ETHERNET, RADIO = Address("eth0", "10.77.0.9", 24), Address("wlan0", "192.168.1.9", 24, dynamic=True)
WHOLE = {name: {} for name in (authority.TOKEN, *authority.TLS_SECRETS)}, {authority.CA_CERTIFICATE: {}}


def test_the_address_is_what_the_default_route_sends_from() -> None:
    found = probe(addresses=(RADIO, ETHERNET))
    assert init.choose_address(found, None) == init.Choice("10.77.0.9", "what eth0 sends from", dynamic=False)


def test_an_only_address_will_do_without_a_default_route() -> None:
    link_local = Address("eth1", "169.254.3.4", 16)
    found = probe(addresses=(RADIO, link_local), route=Route())
    assert init.choose_address(found, None).address == "192.168.1.9"


def test_several_addresses_without_a_route_are_for_the_user_to_choose() -> None:
    with pytest.raises(UsageError, match="several addresses") as error:
        init.choose_address(probe(addresses=(RADIO, ETHERNET), route=Route()), None)
    assert "--advertise-addr 10.77.0.9   # eth0" in error.value.next_steps


def test_a_wished_address_must_be_the_machines_own() -> None:
    assert init.choose_address(probe(addresses=(RADIO, ETHERNET)), "192.168.1.9").dynamic
    with pytest.raises(UsageError, match=r"10\.0\.0\.1 is not an address of pi-1; it has 10\.77\.0\.9"):
        init.choose_address(probe(), "10.0.0.1")


def test_a_machine_without_a_network_is_told_so() -> None:
    with pytest.raises(UsageError, match="is its network up"):
        init.choose_address(probe(addresses=(), route=Route()), None)


def test_the_pool_overlaps_no_network_of_the_machine() -> None:
    assert init.choose_pool(["192.168.1.0/24"], None) == init.POOLS[0]
    assert init.choose_pool(["10.0.0.0/8", "fe80::/64"], None) == "172.30.0.0/16"
    with pytest.raises(UsageError, match=r"overlaps 10\.201\.7\.0/24") as error:
        init.choose_pool(["10.201.7.0/24"], "10.201.0.0/16")
    assert error.value.next_steps[0] == f"--pool {init.POOLS[1]}"
    with pytest.raises(UsageError, match="name a free one"):
        init.choose_pool(["0.0.0.0/0"], None)
    with pytest.raises(UsageError, match=r"10\.1\.2\.3/16"):
        init.choose_pool([], "10.1.2.3/16")


def test_a_new_swarm_has_a_heartbeat_fit_for_wifi() -> None:
    (action,) = init.plan_new(init.Choice("10.77.0.9", "", dynamic=False), "10.201.0.0/16")
    assert isinstance(action, CreateSwarm)
    assert action.spec["Dispatcher"] == {"HeartbeatPeriod": 15_000_000_000}


def test_a_swarm_that_has_all_of_it_is_left_alone() -> None:
    secrets, configs = WHOLE
    assert init.plan_existing(swarm(secrets=secrets, configs=configs), "") == []


def test_a_swarm_of_somebody_elses_making_gets_what_is_missing() -> None:
    theirs = swarm(spec={"Dispatcher": {"HeartbeatPeriod": 5_000_000_000}, "CAConfig": {}})
    update, *stored = init.plan_existing(theirs, "")
    assert isinstance(update, UpdateSwarm)
    assert (update.changes[0].field, update.changes[0].old, update.changes[0].new) == (
        "Dispatcher.HeartbeatPeriod",
        "5 s",
        "15 s",
    )
    assert [action.name for action in stored if isinstance(action, Store)] == [
        "fdtc-token", "fdtc-ca-key", "fdtc-coordinator-key", "fdtc-coordinator-cert", "fdtc-ca-cert",
    ]  # fmt: skip


def test_a_longer_heartbeat_of_the_users_own_is_kept() -> None:
    secrets, configs = WHOLE
    own = {"Dispatcher": {"HeartbeatPeriod": 30_000_000_000}, "CAConfig": {"NodeCertExpiry": 10**18}}
    assert init.plan_existing(swarm(manager(), spec=own, secrets=secrets, configs=configs), "") == []


def test_an_authority_with_a_part_missing_is_made_anew_and_the_token_kept() -> None:
    secrets, configs = WHOLE
    left = {name: labels for name, labels in secrets.items() if name != authority.KEY}
    actions = authority.plan(left, configs)
    assert [a.name for a in actions if isinstance(a, Discard)] == [
        authority.CA_KEY, authority.CERTIFICATE, authority.CA_CERTIFICATE,
    ]  # fmt: skip
    assert authority.TOKEN not in [a.name for a in actions if isinstance(a, Store)]


def test_the_authority_signs_the_coordinators_certificate() -> None:
    stored = {action.name: action for action in authority.plan({}, {}) if isinstance(action, Store)}
    ca = x509.load_pem_x509_certificate(stored[authority.CA_CERTIFICATE].data)
    certificate = x509.load_pem_x509_certificate(stored[authority.CERTIFICATE].data)
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "coordinator" in names.get_values_for_type(x509.DNSName)
    assert isinstance(ca.public_key(), ec.EllipticCurvePublicKey)
    assert not stored[authority.CA_CERTIFICATE].secret
    assert all(stored[name].secret for name in (authority.TOKEN, *authority.TLS_SECRETS))
    assert b"PRIVATE" not in repr(stored).encode()


def test_every_token_is_another() -> None:
    first, second = (authority.plan({}, {})[0] for _ in range(2))
    assert isinstance(first, Store)
    assert isinstance(second, Store)
    assert first.data != second.data
    assert len(first.data) == 64


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"swarm_state": "active", "node_id": "x"}, "a worker of a swarm already"),
        ({"swarm_state": "locked"}, "unlock key"),
        ({"swarm_state": "error", "swarm_error": "certificate has expired"}, "certificate has expired"),
        ({"swarm_state": "pending"}, "pending"),
    ],
)
def test_an_engine_that_is_busy_with_another_swarm_is_refused_with_a_remedy(
    engine: dict[str, str], message: str
) -> None:
    found = probe()
    with pytest.raises(SwarmctlError, match=message) as error:
        init.refuse_unfit(replace(found, engine=replace(found.engine, **engine)), None, yes=False)
    assert error.value.next_steps


def test_a_manager_on_a_changing_address_is_refused_unless_told() -> None:
    choice = init.Choice("192.168.1.9", "as told", dynamic=True)
    with pytest.raises(UsageError, match="DHCP"):
        init.refuse_unfit(probe(), choice, yes=False)
    init.refuse_unfit(probe(), choice, yes=True)
