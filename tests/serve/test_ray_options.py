"""The file of `izwi ray deploy`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from izwi.errors import InvalidRequest
from izwi_api.serve.ray_options import RayOptions, cluster_access, parse_options, read_options
from izwi_api.settings import Access


def test_a_toml_file_is_read(tmp_path):
    file = tmp_path / "app.toml"
    file.write_text(
        'models = ["a", "b"]\nengines = 4\nkv_mib = 2\n',
        encoding="utf-8",
    )
    options = read_options(file)
    assert options.models == ("a", "b")
    assert options.engine_config.kv_bytes == 2 << 20
    assert options.num_places > options.engines, "new engines start while old ones are drained"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model": ["a"]}, "model"),
        ({"port": "x"}, "port"),
        ({"engines": 0}, "engines"),
        ({"api_servers": 0}, "api_servers"),
        ({"router": "best"}, "router"),
        ({"weights": "int3"}, "weights"),
        ({"policy": "lifo"}, "policy"),
        ({"engines": 3, "max_engines": 2}, "max_engines"),
        ({"streams_each": 0}, "streams_each"),
        ({"least_slack_ms": -1.0}, "least_slack_s"),
        ({"first_audio_ms": 200.0}, "prometheus"),
        ({"downscale_delay_s": -1.0}, "downscale_delay_s"),
    ],
)
def test_wrong_values_are_refused_by_name(values, named):
    with pytest.raises(InvalidRequest, match=named):
        parse_options(values)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="none"):
        read_options(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_text("= 1")
    with pytest.raises(InvalidRequest, match=r"x\.toml"):
        read_options(tmp_path / "x.toml")


def test_defaults_are_one_engine_on_a_gpu_on_this_machine_only():
    options = RayOptions()
    assert (options.engines, options.engine_gpus) == (1, 1.0)
    assert options.host == "127.0.0.1"


def test_the_number_of_engines_is_fixed_unless_it_may_be_larger():
    assert not RayOptions(engines=2).is_autoscaled
    assert not RayOptions(engines=2, max_engines=2).is_autoscaled
    options = RayOptions(engines=1, max_engines=3, least_slack_ms=250.0)
    assert options.is_autoscaled
    assert options.num_places == RayOptions(engines=3).num_places
    assert options.scaling_rules.least_slack_s == 0.25


def test_ray_is_not_imported_by_the_command_line():
    code = "import sys, izwi_api.cli.main; sys.exit(bool({'ray', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_cluster_that_others_started_needs_a_key_whatever_the_file_says():
    options = RayOptions(host="127.0.0.1")
    with pytest.raises(InvalidRequest, match="IZWI_API_KEY"):
        cluster_access(options, Access(), is_own_cluster=False)
    key = Access(api_key_digest=b"digest")
    assert cluster_access(options, key, is_own_cluster=False) == key
    open_to_all = RayOptions(insecure=True)
    assert cluster_access(open_to_all, Access(), is_own_cluster=False).allowed_hosts is None


def test_a_cluster_of_ones_own_listens_where_the_file_says():
    access = cluster_access(RayOptions(), Access(), is_own_cluster=True)
    assert access.allowed_hosts == (), "only names of this machine"
    with pytest.raises(InvalidRequest, match="refusing to listen"):
        cluster_access(RayOptions(host="0.0.0.0"), Access(), is_own_cluster=True)
