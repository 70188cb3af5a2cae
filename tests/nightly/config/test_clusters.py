"""Several clusters in one configuration: secrets, local offsets, and the schema.

The core of these tests is in tests/config/test_clusters.py.
"""

from __future__ import annotations

import pytest

from rmqd.config.load import config_schema
from rmqd.plugins.model_options import consumer_options
from tests.config.configuration import load, problems
from tests.config.test_clusters import GROUP, IN_TOKYO, TOKYO


@pytest.mark.parametrize(
    "override",
    [
        "clusters.tokyo.client.secret_key=plain",
        "clusters.tokyo.client={secret_key: plain}",
        "clusters={tokyo: {nameserver: 't:1', client: {access_key: '${A}', secret_key: plain}}}",
    ],
)
def test_secrets_of_a_cluster_are_refused_on_the_command_line(override: str) -> None:
    found = problems(TOKYO + GROUP, [override], environ={"A": "a"})
    assert any("clusters.tokyo.client.secret_key: all users can see this secret" in problem for problem in found)
    taken = load(TOKYO + GROUP, ["clusters.tokyo.client.secret_key=${SECRET}"], environ={"SECRET": "kept"})
    assert taken.clusters["tokyo"].client.secret_key == "kept"


def test_each_cluster_has_a_folder_for_offsets_of_broadcasting_groups() -> None:
    """Brokers of two clusters may have the same name, but their offsets are unrelated."""
    config = load("nameserver: a:1\nstate_dir: /state\n" + TOKYO + IN_TOKYO + "  # or not\n")
    assert consumer_options(config, "mailer").local_offsets_directory == "/state/clusters/tokyo/offsets"
    default = load("nameserver: a:1\nstate_dir: /state\n" + TOKYO + GROUP)
    assert consumer_options(default, "mailer").local_offsets_directory == "/state/offsets"


def test_the_schema_has_clusters_with_their_keys() -> None:
    schema = config_schema()
    assert set(schema["$defs"]["ClusterConfig"]["properties"]) == {"nameserver", "nameserver_url", "client"}
    assert schema["properties"]["clusters"]["additionalProperties"] == {"$ref": "#/$defs/ClusterConfig"}
    assert "cluster" in schema["$defs"]["GroupConfig"]["properties"]
