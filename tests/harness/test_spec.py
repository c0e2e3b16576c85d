"""Specs: complete when written, the same when read back, and refused in one line that names the field."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness import yaml_document
from harness.cluster.hosts import Host
from harness.cluster.layout import cluster_layout
from harness.cluster.systems import SYSTEMS, configured
from harness.search.hunt.fresh_specs import promising
from harness.spec import Spec, load, loads, parse
from harness.yaml_document import SpecError, YamlDocument, parse_document
from images.broker.config import NodeConfig
from nemesis.cluster_shape import ClusterShape
from nemesis.registry import FAIR_FAMILIES, FAMILIES
from nemesis.schedule import parse_faults
from nemesis.strategies import schedules
from results.run import stored_yaml
from workloads.clients.consumer_rules import ConsumerRules

ROOT = Path(__file__).parents[2]
DENSE = promising(parse({"vary": True}), Random(1), {}).to_yaml()
TEXTS = {
    **{str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted((ROOT / "harness").rglob("*.yaml"))},
    "a dense spec": DENSE,
    "merged": "base: &base {rate: 5}\nspecs:\n  a: {<<: *base, seed: 1}\n",
    "empty": "",
}
CLUSTER = ClusterShape(brokers=("b1", "b2", "b3"), controllers=("c1",), partitions=2)


def test_an_empty_spec_is_the_default_run() -> None:
    spec = loads("")
    assert (spec.brokers, spec.partitions, spec.time_limit_s, spec.rate) == (3, 2, 60.0, 20.0)
    assert spec.families == FAIR_FAMILIES
    assert spec.min_insync_replicas == 2


def test_the_command_line_is_put_on_top_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "nightly.yaml"
    path.write_text("brokers: 5\nseed: 3\nsettings: {min.insync.replicas: 3, segment.bytes: 4096}\n")
    spec = load(path, seed=9, brokers=None, settings={"min.insync.replicas": "1"}, drawn_seed=77)
    assert (spec.name, spec.brokers, spec.seed, spec.min_insync_replicas) == ("nightly", 5, 9, 1)
    assert spec.settings["segment.bytes"] == "4096"


def test_a_seed_is_drawn_only_when_nobody_names_one() -> None:
    assert parse({}, drawn_seed=77).seed == 77
    assert parse({"seed": 3}, drawn_seed=77).seed == 3
    assert parse({}, drawn_seed=77, seed=4).seed == 4


def test_replicas_follow_the_brokers_down_but_not_up() -> None:
    assert parse({"brokers": 2}).replication_factor == 2
    assert parse({"brokers": 5}).replication_factor == 3


def test_rules_of_the_consumer_are_switched_beside_those_of_the_broker() -> None:
    spec = loads("without: [maximal_isr, consumer.wait_for_position_epoch]\nclients: {validate_positions: false}")
    assert spec.system_rules_off == ("maximal_isr",)
    rules = ConsumerRules().without(spec.consumer_rules_off)
    assert rules == ConsumerRules(validate_position=False, wait_for_position_epoch=False)
    assert loads(spec.to_yaml()) == spec
    assert spec == loads("without: [maximal_isr, consumer.wait_for_position_epoch, consumer.validate_position]")
    assert loads("without: consumer.validate_position\nclients: {validate_positions: false}").without == (
        "consumer.validate_position",
    )
    with pytest.raises(
        SpecError, match=r"line 2: clients.validate_positions: true contradicts without: consumer.validate"
    ):
        loads("without: [consumer.validate_position]\nclients: {validate_positions: true}")
    with pytest.raises(SpecError, match=r"line 1: clients\.validate_positions: 'no' is not true or false"):
        loads("clients: {validate_positions: 'no'}")
    with pytest.raises(SpecError, match=r"consumer\.gravity' is not a rule"):
        loads("without: [consumer.gravity]")


def test_unclean_elections_are_permitted_where_the_setting_counts_at_some_time_of_the_run() -> None:
    enabled, strategy = "unclean.leader.election.enable", "unclean.recovery.strategy"
    to_manual = {"at": "1s", "fault": "alter-config", "key": strategy, "value": "manual"}

    def permitted(settings: dict[str, str], *faults: dict[str, str]) -> bool:
        return parse({"settings": settings, "faults": list(faults)}).check_settings().unclean_election

    assert permitted({enabled: "true"})
    assert permitted({strategy: "proactive"})
    assert not permitted({enabled: "true", strategy: "balanced"})
    assert permitted({enabled: "true", strategy: "balanced"}, to_manual)


def test_nodes_have_settings_of_their_own_on_top_of_those_of_all() -> None:
    text = """
    settings: {faultline.protocol: kip101}
    node_settings:
      b2: {faultline.protocol: kip279, segment.bytes: 4096}
    """
    spec = loads(text)
    assert spec.node_settings == {"b2": {"faultline.protocol": "kip279", "segment.bytes": "4096"}}
    assert loads(spec.to_yaml()) == spec
    layout = configured(
        SYSTEMS["broker"], cluster_layout(3), spec.settings, spec.without, node_settings=spec.node_settings
    )
    protocols = [NodeConfig.parse(layout.properties[node.name]).text("faultline.protocol") for node in layout.brokers]
    assert protocols == ["kip101", "kip279", "kip101"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("node_settings: {b9: {segment.bytes: 4096}}", "node_settings: 'b9' is not one of b1, b2, b3, c1, c2, c3"),
        ("node_settings: {b1: {segment.byte: 1}}", "node_settings.b1: unknown configuration 'segment.byte'"),
        ("node_settings: {b1: 3}", "node_settings.b1: 3 is not a mapping of names to values"),
        (
            "node_settings: {b1: {faultline.release: kip101}}",
            "node_settings.b1: faultline.protocol: 'truncate_on_fetch' is later than faultline.release, 'kip101'",
        ),
    ],
)
def test_settings_of_a_node_that_cannot_be_used_are_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(SpecError) as refused:
        loads(text)
    assert line in str(refused.value)


def test_faults_are_families_a_script_or_nothing() -> None:
    assert parse_faults("partition, kill") == (("partition", "kill"), parse({}).script)
    assert parse_faults("choreography")[0] == ("scripted",), "as earlier versions named it"
    assert parse_faults("all,fsync-lies")[0] == (*FAIR_FAMILIES, "fsync-lies")
    assert not parse({"faults": "none"}).faults_asked
    scripted = parse({"faults": [{"at": "1s", "for": "2s", "fault": "pause"}]})
    assert scripted.families == ()
    assert len(scripted.script) == 1
    assert parse({"faults": [{"at": "1s", "for": "2s", "fault": "pause"}]}, faults="kill").families == ("kill",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("brokrs: 3", "brokrs: unknown field; did you mean brokers?"),
        ("brokers: three", "brokers: 'three' is not a whole number"),
        ("brokers: 0", "brokers: 0 is less than 1"),
        ("brokers: true", "brokers: True is not a whole number"),
        ("time_limit: 0", "time_limit: 0 is less than 0.001"),
        ("time_limit: soon", "time_limit: 'soon' is not a duration"),
        ("rate: fast", "rate: 'fast' is not a number"),
        ("replication_factor: 4", "replication_factor: 4 replicas do not fit on 3 brokers"),
        ("acks: 2", "acks: '2' is not one of all, 1, 0"),
        ("clients: {burst: 50}", "clients.burst: 50 is more than clients.pipeline, 5"),
        ("vary: true\nclients: {burst: 101}", "clients.burst: 101 is more than clients.pipeline, 100"),
        ("faults: quakes", "faults: 'quakes' is not one of partition, kill"),
        ("faults: [kill, 3]", "faults: 3 is not one of partition, kill"),
        ("faults: {kill: 3}", "faults: {'kill': 3} is not all, none, a list of families or a list of faults"),
        ("faults: [{at: 1s, for: 1s, fault: kill, nodes: [b9]}]", "faults[0]: 'b9' is neither a node"),
        ("faults: [{at: 70s, for: 1s, fault: kill}]", "faults[0].at: 70 s is not before the time limit of 60 s"),
        ("fault: [kill]", "fault: unknown field; did you mean faults?"),
        ("gravity: 1", "gravity: unknown field; one of: faults, name, environment"),
        ("families: [kill]", "families: unknown field; did you mean faults?"),
        (
            "settings: {min.insync.replica: 2}",
            "settings: unknown configuration 'min.insync.replica'; did you mean min.insync.replicas?",
        ),
        ("settings: {min.insync.replicas: 0}", "settings: min.insync.replicas: 0 is less than 1"),
        ("settings: [a]", "settings: ['a'] is not a mapping of names to values"),
        ("without: [maximal]", "without: 'maximal' is not a rule"),
        ("workload: queue", "workload: 'queue' is not one of append"),
        ("environment: mars", "environment: 'mars' is not one of sim"),
        ("system: oracle", "system: 'oracle' is not one of broker"),
        ("recency: loose", "recency: 'loose' is not one of default, strict"),
        ("losses: all", "losses: 'all' is not one of promised, none"),
        ("hosts: [192.0.2.1]", "hosts: ['192.0.2.1'] is not a mapping of names to values"),
        ("hosts: {b1: 192.0.2.1}", "hosts.b1: '192.0.2.1' is not a mapping of names to values"),
        ("hosts: {b1: {}}", "hosts.b1.address: missing"),
        ("hosts: {b1: {adress: 192.0.2.1}}", "hosts.b1.adress: unknown field; did you mean address?"),
        ("hosts: {b1: {address: -v}}", "hosts.b1: address: '-v' is neither an IPv4 address nor a name"),
        ("hosts: {b1: {address: h, port: 70000}}", "hosts.b1: port: 70000 is not from 1 to 65535"),
        ("hosts: {b1: {address: h, port: ssh}}", "hosts.b1.port: 'ssh' is not a whole number"),
        ("hosts: {b1: {address: h, user: a b}}", "hosts.b1: user: 'a b' is not the name of a user"),
        ("hosts: {b4: {address: h}}", "hosts.b4: not a node of this cluster; its nodes are b1, b2, b3, c1"),
        (
            "hosts: {b1: {address: h}, b2: {address: h}}",
            "hosts.b2: h carries b1 already; every node needs its own host",
        ),
        (
            "environment: ssh",
            "hosts: b1, b2, b3, c1, c2, c3 missing; environment ssh needs a host for each of b1, b2, b3, c1, c2, c3",
        ),
        ("- 1", "a spec is a mapping of names to values, not [1]"),
        ("a: [", "not YAML: while parsing a flow node"),
        ("{brokers: 3, brokers: 4}", "brokers: is given twice, first in line 1; keep one of them"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(SpecError) as refused:
        loads(text, "a.yaml")
    assert re.match(r"a\.yaml:[12]: " + re.escape(line), str(refused.value))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("brokers: 3\nrate: fast", "a.yaml:2: rate: 'fast'"),
        ("rate: 20\nsettings:\n  segment.bytes: 4096\n  min.insync.replicas: 0", "a.yaml:4: settings: min.insync"),
        ("settings:\n  segment.bytes: 4096\n  min.insync.replica: 2", "a.yaml:3: settings: unknown configuration"),
        (
            "faults:\n  - {at: 1s, for: 1s, fault: kill}\n  - at: 70s\n    for: 1s\n    fault: kill",
            "a.yaml:3: faults[1].at",
        ),
        ("faults:\n- kill\n- quakes", "a.yaml:3: faults: 'quakes' is not one of"),
        ("hosts:\n  b1:\n    address: h\n    port: 70000", "a.yaml:4: hosts.b1: port: 70000"),
        ("hosts:\n  b1:\n    port: 22", "a.yaml:2: hosts.b1.address: missing"),
        ("brokers: 3\nrate: 20\nbrokers: 4", "a.yaml:3: brokers: is given twice, first in line 1"),
        ("settings:\n  segment.bytes: 1\n  segment.bytes: 2", "a.yaml:3: segment.bytes: is given twice"),
        ("brokers: 3\nfaults: [kill\nrate: 3", "a.yaml:3: not YAML: "),
        ("seed: 2020-13-45", "a.yaml: not YAML: month must be in 1..12"),
        ("[" * 10000, "a.yaml:1: nested more than 50 deep, the limit of lists and mappings"),
    ],
)
def test_an_error_names_file_and_line(text: str, place: str) -> None:
    with pytest.raises(SpecError) as refused:
        loads(text, "a.yaml")
    assert str(refused.value).startswith(place)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [f"workload: {'x' * 500_000}", f"workload: [{'x, ' * 50_000}x]"])
def test_the_error_of_a_long_value_names_its_field_and_what_would_be_right_without_all_of_the_value(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        loads(text, "a.yaml")
    assert str(refused.value).startswith("a.yaml:1: workload: ")
    assert len(str(refused.value)) < 2_000


def test_an_error_of_an_option_names_no_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("brokers: 3\nsettings: {min.insync.replicas: 2}\nrate: 20\n")
    for options in ({"rate": 0.0}, {"settings": {"min.insync.replicas": "0"}}, {"faults": "quakes"}):
        with pytest.raises(SpecError) as refused:
            load(path, **options)
        assert str(refused.value).startswith(next(iter(options)))


def test_aliases_of_aliases_are_counted_and_not_written_out() -> None:
    laughs = "a: &a [x, x]\n" + "".join(
        f"{n}: &{n} [*{o}, *{o}]\n" for o, n in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)
    )
    with pytest.raises(SpecError, match="line 1: more than 200000 values with its aliases written out"):
        loads(laughs)


def test_a_spec_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.yaml: cannot be read: No such file"):
        load(tmp_path / "absent.yaml")


hosts = st.builds(
    Host,
    address=st.sampled_from(["192.0.2.1", "lab-1.example"]),
    port=st.sampled_from([22, 2222]),
    user=st.sampled_from(["root", "admin"]),
    key=st.sampled_from(["", "~/.ssh/lab"]),
)
specs = st.builds(
    Spec,
    name=st.sampled_from(["a", "two-victims", "0x1", "yes"]),
    seed=st.integers(0, 2**32),
    time_limit_s=st.integers(100, 3000).map(float),
    partitions=st.just(2),
    rate=st.floats(0.5, 1e4),
    acks=st.sampled_from(["all", "1", "0", "-1"]),
    families=st.lists(st.sampled_from(tuple(FAMILIES)), unique=True).map(tuple),
    settings=st.dictionaries(st.just("min.insync.replicas"), st.sampled_from(["1", "2", "3"])),
    without=st.lists(st.sampled_from(["maximal_isr", "idempotent_dedupe"]), unique=True).map(tuple),
    hosts=st.dictionaries(st.sampled_from(["b1", "c1"]), hosts, max_size=1),
)


@given(specs)
def test_a_spec_written_out_reads_back_the_same(spec: Spec) -> None:
    assert loads(spec.to_yaml()) == spec


@given(schedules(CLUSTER))
def test_a_scripted_spec_written_out_reads_back_the_same(schedule: object) -> None:
    spec = Spec(families=(), script=schedule)  # type: ignore[arg-type]
    assert loads(spec.to_yaml()) == spec


def lines(document: YamlDocument) -> list[str]:
    """Where the fields of a document are written, by each of its names on top."""
    return [document.located(f"{name}: …") for name in document.values or ()]


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
@pytest.mark.parametrize("name", TEXTS)
def test_both_parsers_read_the_same_values_in_the_same_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(yaml_document, "_PlainLoader", None)
        by_libyaml = parse_document(TEXTS[name], name)
    with monkeypatch.context() as patched:
        patched.setattr(yaml_document, "_FasterLoader", yaml_document._PlainLoader)
        by_pyyaml = parse_document(TEXTS[name], name)
    assert by_libyaml.values == by_pyyaml.values
    assert lines(by_libyaml) == lines(by_pyyaml)


@pytest.mark.parametrize("text", ["a: [1", "a: 1\na: 2", "a: b: c", "[" * 5000, "\ta: 1", "a: !!int x", "a: \x00"])
def test_an_error_has_the_same_words_without_libyaml(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError) as refused:
        parse_document(text, "file.yaml")
    monkeypatch.setattr(yaml_document, "_FasterLoader", yaml_document._PlainLoader)
    with pytest.raises(SpecError) as refused_again:
        parse_document(text, "file.yaml")
    assert str(refused.value) == str(refused_again.value)
    assert "\n" not in str(refused.value)


def test_what_is_stored_is_what_pyyaml_itself_writes() -> None:
    values = yaml.safe_load(DENSE) | {"title": "mehr als eine Zeile, in der über Brücken gegangen wird, " * 9}
    text = stored_yaml.dump(values)
    assert text == yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
    assert stored_yaml.parse(text) == values


def test_checkers_know_within_what_time_the_followers_on_all_nodes_hear_their_leaders() -> None:
    assert parse({}).check_settings().leader_heard_ms == 1_100
    slow = {"b2": {"replica.fetch.wait.max.ms": "1500"}}
    assert parse({"node_settings": slow}).check_settings().leader_heard_ms == 3_100
