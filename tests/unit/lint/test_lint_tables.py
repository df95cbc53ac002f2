# SPDX-License-Identifier: Apache-2.0
"""What is read from an engine's source, on small sources in the three forms that SGLang has had; the shipped tables."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from rackwell.lint.environment import read_environment
from rackwell.lint.options import Option, read_options
from rackwell.lint.tables import Table, Tables, read_wheel

CATALOG = Path(__file__).parents[3] / "catalog"
TABLES = Tables(CATALOG)
SERVER_ARGS = "sglang/srt/server_args.py"
CALLS = """
from sglang.srt.parsers import Parser
KINDS = ["a", "b"]
KINDS.append("c")
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        more = list(Parser.Known.keys())
        group = parser.add_argument_group("g")
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=1)
        parser.add_argument("--kind", type=str, choices=KINDS + ["d"])
        group.add_argument("--parser", choices=["auto"] + more)
        if True:
            parser.add_argument("--bare", action="store_true")
        parser.add_argument("--sizes", type=int, nargs="+")
        parser.add_argument("--old", action=DeprecatedAction, help="Note: --old is deprecated now. Use --new instead.")
        add_more(parser)
def add_more(parser):
    parser.add_argument("--from-function", type=float)
"""
FIELDS = """
from sglang.srt.arg_groups.fields.exec_ import Exec
class Backend(str, Enum):
    FULL = "full"
    OFF = "disabled"
class ServerArgs:
    path: A[str, Arg(help="x", aliases=["--model"])]
    hidden: A[str, Arg(help="x", no_cli=True)] = ""
    trust: A[bool, "help"] = False
    sizes: A[Optional[List[int]], "help"] = None
    phase: A[Literal["one", "two"], "help"] = "one"
    graph: A[Optional[str], Arg(help="x", choices=[m.value for m in Backend])] = None
    tokens: A[int | None, Arg(help="x", type_parser=human_readable_int)] = None
    plain: int = 3
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--gone", action=DeprecatedAction, error_message="use --path")
        parser.add_argument("--alias", action=DeprecatedAliasStoreAction, new_flag="--path", type=str)
_INPUT_NAMESPACES = [Exec]
"""


def options(files: dict[str, str]) -> dict[str, Option]:
    found = read_options(lambda name: files[name].encode() if name in files else None)
    assert found.unread == []
    return {option.names[0]: option for option in found.options}


def test_calls() -> None:
    found = options({SERVER_ARGS: CALLS, "sglang/srt/parsers.py": "class Parser:\n    Known = {'x': 1, 'y': 2}\n"})
    assert found["--tensor-parallel-size"] == Option(("--tensor-parallel-size", "--tp-size"), type="int")
    assert found["--kind"].choices == ("a", "b", "c", "d")
    assert found["--parser"].choices == ("auto", "x", "y")
    assert (found["--bare"].takes, found["--sizes"].takes, found["--from-function"].type) == ("none", "some", "float")
    assert (found["--old"].deprecated, found["--old"].successor) == (True, "--new")


def test_fields_of_the_class_and_of_those_that_it_collects() -> None:
    action = "Arg(help='x', action=argparse.BooleanOptionalAction)"
    other = f"class Exec(msgspec.Struct):\n    fast_mode: A[bool, {action}] = True\n"
    found = options({SERVER_ARGS: FIELDS, "sglang/srt/arg_groups/fields/exec_.py": other})
    assert set(found) == {
        "--path", "--trust", "--sizes", "--phase", "--graph", "--tokens", "--gone", "--alias", "--fast-mode"
    }  # fmt: skip
    assert found["--path"].names == ("--path", "--model")
    assert (found["--trust"].takes, found["--sizes"].takes, found["--tokens"].type) == ("none", "some", "size")
    assert (found["--phase"].choices, found["--graph"].choices) == (("one", "two"), ("disabled", "full"))
    assert found["--fast-mode"].names == ("--fast-mode", "--no-fast-mode")
    assert (found["--gone"].refused, found["--gone"].successor) == (True, "--path")
    assert (found["--alias"].refused, found["--alias"].successor) == (False, "--path")


def test_what_is_not_understood_is_no_choice_and_an_option_that_is_not_is_told() -> None:
    source = (
        "class ServerArgs:\n    def add_cli_args(parser):\n"
        "        parser.add_argument('--x', choices=ask_the_network())\n        parser.add_argument(name(), type=int)\n"
    )
    found = read_options(lambda name: source.encode() if name == SERVER_ARGS else None)
    assert [(option.names, option.choices) for option in found.options] == [(("--x",), ())]
    assert found.unread == ["sglang.srt.server_args:4"]


def test_environment() -> None:
    source = b"""
NAME = "BY_CONSTANT"
class Envs:
    DECLARED = EnvBool(False)
    RENAMED = EnvBoolWithAlias(True, deprecated_name="OLD_NAME")
_DEPRECATED_ENVS = {"RETIRED": _DeprecatedEnv(note="use --flag")}
os.getenv("BY_GETENV"); os.environ.get("BY_GET"); os.environ["BY_INDEX"]; get_bool_env_var("BY_HELPER")
os.getenv(NAME); "BY_IN" in os.environ
os.environ["ONLY_SET"] = "1"
print("NO_VARIABLE")
"""
    found = {variable.name: variable for variable in read_environment([("a.py", source), ("x/test/b.py", source)])}
    assert set(found) == {
        "BY_CONSTANT", "DECLARED", "RENAMED", "OLD_NAME", "RETIRED", "BY_GETENV", "BY_GET", "BY_INDEX", "BY_HELPER",
        "BY_IN",
    }  # fmt: skip
    assert found["OLD_NAME"].successor == "RENAMED"
    assert (found["RETIRED"].deprecated, found["RETIRED"].successor) == (True, "use --flag")


def test_a_wheel_becomes_a_table_and_the_table_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sglang-0.5.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(SERVER_ARGS, CALLS)
        archive.writestr(
            "sglang-0.5.9.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: sglang\nLicense: x\n        \n        y\nRequires-Python: >=3.10\n"
            "Requires-Dist: flashinfer_python==0.6.3\nRequires-Dist: torch==2.9.1; extra == 'x'\n"
            "\nRequires-Dist: no==1\n",
        )
    table = read_wheel(path, "sglang", "0.5.9", path.name, "0" * 64)
    assert Table.from_bytes(table.as_bytes()) == table
    assert (table.python, table.requires, table.pinned("flashinfer-python")) == (
        ">=3.10", {"flashinfer-python": "==0.6.3"}, "0.6.3"
    )  # fmt: skip


@pytest.mark.parametrize("version", TABLES.versions("sglang"))
def test_the_shipped_tables_are_whole_and_small(version: str) -> None:
    table = TABLES.get("sglang", version)
    assert table is not None
    assert table.unread == ()
    assert len(table.options) > 300
    assert {"tp-size", "moe-runner-backend", "kv-cache-dtype", "model-path", "port"} <= set(table.by_name)
    assert "flashinfer_cutlass" in table.by_name["moe-runner-backend"].choices
    assert table.pinned("flashinfer-python")
    assert (CATALOG / "flags" / f"sglang-{version}.json.gz").stat().st_size < 60_000


def test_what_the_facts_say_of_the_flags() -> None:
    def has(version: str, name: str) -> str:
        table = TABLES.get("sglang", version)
        assert table is not None
        option = table.by_name.get(name)
        return "absent" if option is None else "deprecated" if option.deprecated else "there"

    assert [has(v, "nsa-prefill-backend") for v in ("0.5.9", "0.5.12.post1", "0.5.13", "0.5.19", "0.5.20")] == [
        "there", "there", "deprecated", "deprecated", "absent"
    ]  # fmt: skip
    assert [has(v, "disable-cuda-graph") for v in ("0.5.13", "0.5.14", "0.5.23")] == [
        "there",
        "deprecated",
        "deprecated",
    ]
    assert [has(v, "cuda-graph-max-bs") for v in ("0.5.13", "0.5.14", "0.5.20")] == ["there", "deprecated", "absent"]
    assert [has(v, "enforce-disable-flashinfer-allreduce-fusion") for v in ("0.5.9", "0.5.10")] == ["absent", "there"]
    assert [has(v, "enable-dp-attention") for v in ("0.5.9", "0.5.23")] == ["there", "deprecated"]
    assert has("0.5.9", "tp") == "absent"


def test_the_tables_are_of_the_wheels_that_the_catalogue_knows() -> None:
    from rackwell.build.catalogue.wheels import known_wheels

    for project, wheels in known_wheels(CATALOG).wheels.items():
        assert set(TABLES.versions(project)) == set(wheels)
        for version, wheel in wheels.items():
            table = TABLES.get(project, version)
            assert table is not None
            assert (table.wheel, table.sha256) == (wheel.filename, wheel.sha256)
