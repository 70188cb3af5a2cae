"""A real Prometheus over real faults: every panel shows data, alerts fire and resolve (all: `make campaign alerts`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.deploy.dashboards import FOLDER
from tests.nightly.campaigns.alerts import FACTOR
from tests.nightly.deploy.panels import without_data
from tests.nightly.deploy.scene import BESIDE, Scene, tell
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.release import EMBEDDED
from tests.rocketmq.spec import ClusterSpec
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECONDS = 60.0
SCALED_OBJECT = FOLDER.parents[1] / "kubernetes" / "components" / "keda" / "scaledobject.yaml"
QUICK = ("RmqdHandlerFailing", "RmqdGroupFailed")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A scene on an embedded broker. One handler hangs from the beginning, because queues stall only after 20 s."""
    with (
        RealCluster.start(ClusterSpec(version=EMBEDDED)) as cluster,
        Scene(cluster, tmp_path_factory.mktemp("scene"), FACTOR) as made,
    ):
        made.switch("hanging", "hang")
        yield made


def test_alerts_fire_for_real_faults_and_resolve(scene: Scene) -> None:
    """Only alerts that fire within seconds."""
    faults = [fault for fault in scene.faults() if fault.alert in QUICK]
    reload_failed = scene.faults_of_daemons()[0]

    told = tell(scene, [*faults, reload_failed], SECONDS)

    assert {one.alert for one in told} == {*QUICK, "RmqdReloadFailed"}


@pytest.mark.parametrize(("name", "group"), [("rmqd-overview", ".*"), ("rmqd-group", "failing")])
def test_every_panel_shows_data(scene: Scene, name: str, group: str) -> None:
    """Handlers fail and hang, because panels of failures and stalls would otherwise be empty."""
    path = FOLDER / f"{name}.json"
    scene.switch("failing", "fail")

    def all_show() -> bool:
        return not without_data(path, scene.prometheus, group=group)

    try:
        wait_until(all_show, "every panel shows data", SECONDS)
    except AssertionError as error:
        error.add_note("\n".join(without_data(path, scene.prometheus, group=group)))
        raise


def test_queue_panels_show_data_without_a_series_for_each_queue(scene: Scene) -> None:
    scene.switch(BESIDE, "slow")
    panels = ("Lag", "Oldest waiting message", "Queues by state", "The ten queues", "Since the last commit", "Cached")

    def missing() -> list[str]:
        found = without_data(FOLDER / "rmqd-group.json", scene.prometheus, group=BESIDE)
        return [one for one in found if one.startswith(panels)]

    try:
        wait_until(lambda: not missing(), "panels of queues show data", SECONDS)
        assert scene.prometheus.find(f'rmqd_consumer_lag_messages{{group="{BESIDE}", queue!=""}}') == []
    except AssertionError as error:
        error.add_note("\n".join(missing()))
        raise
    finally:
        scene.switch(BESIDE, "")


@pytest.mark.parametrize("group", ["hanging", BESIDE])
def test_the_scaling_query_of_keda_returns_the_lag(scene: Scene, group: str) -> None:
    """Without the namespace, a label that only the Prometheus operator adds."""
    scene.switch(BESIDE, "slow")
    [trigger] = yaml.safe_load(SCALED_OBJECT.read_text())["spec"]["triggers"]
    query = re.sub(r'namespace="[^"]*", group="[^"]*"', f'group="{group}"', trigger["metadata"]["query"])

    waits = wait_until(lambda: scene.prometheus.value(query), "something waits", SECONDS)

    assert len(scene.prometheus.find(query)) == 1
    highest = scene.prometheus.value(f'max_over_time(rmqd_consumer_lag_messages{{group="{group}"}}[1h])')
    assert waits <= highest  # the lag falls and rises, so the daemon may show another value now
