"""The file of `izwi ray deploy`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from izwi.errors import InvalidRequest
from izwi_api.serve.ray_options import RayOptions, parse_options, read_options


def test_a_toml_file_is_read(tmp_path):
    file = tmp_path / "app.toml"
    file.write_text(
        'models = ["a", "b"]\nmax_engines = 4\nkv_mib = 2\n[scaling]\nslack_s = 0.5\n',
        encoding="utf-8",
    )
    options = read_options(file)
    assert options.models == ("a", "b")
    assert options.engine_config.kv_bytes == 2 << 20
    assert options.scaling.slack_s == 0.5
    assert options.num_places > options.max_engines, "new engines start while old ones are drained"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model": ["a"]}, "model"),
        ({"port": "x"}, "port"),
        ({"min_engines": 2}, "min_engines"),
        ({"min_engines": 0}, "min_engines"),
        ({"api_servers": 0}, "api_servers"),
        ({"router": "best"}, "router"),
        ({"api_server_router": "best"}, "api_server_router"),
        ({"weights": "int3"}, "weights"),
        ({"policy": "lifo"}, "policy"),
        ({"scaling": {"slack": 1}}, "slack"),
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
    assert (options.min_engines, options.max_engines, options.engine_gpus) == (1, 1, 1.0)
    assert options.host == "127.0.0.1"


def test_ray_is_not_imported_by_the_command_line():
    code = "import sys, izwi_api.cli.main; sys.exit(bool({'ray', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
